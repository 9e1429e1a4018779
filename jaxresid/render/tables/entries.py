"""The rows of a comparison as a reader sees them: equal ones as one, with a letter each."""

from __future__ import annotations

import string
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from jaxresid.render.report.policies import policy_text
from jaxresid.results import Comparison, ComparisonRow, Compiled

FIRST = ("none", "as-written")
_LETTERS = string.ascii_uppercase + string.ascii_lowercase
_NO_LETTER = "."


@dataclass(frozen=True, slots=True)
class TableEntry:
    """Rows with the same figures, which are one line of the table."""

    letter: str
    row: ComparisonRow
    same: tuple[ComparisonRow, ...] = ()

    @property
    def rows(self) -> tuple[ComparisonRow, ...]:
        """All rows of the entry, the one that is shown first."""
        return (self.row, *self.same)

    @property
    def pareto(self) -> bool:
        """Whether one of the rows is on the Pareto front."""
        return any(r.pareto for r in self.rows)

    @property
    def knee(self) -> bool:
        """Whether one of the rows is the point beyond which saving more memory gets expensive."""
        return any(r.knee for r in self.rows)

    @property
    def suggested(self) -> bool:
        """Whether one of the rows is the one to take."""
        return any(r.suggested for r in self.rows)

    @property
    def name(self) -> str:
        """The letter and the policy: `C dots_saveable`."""
        return f"{self.letter} {policy_text(self.row.policy)}".strip(f"{_NO_LETTER} ")


def entries(comparison: Comparison) -> tuple[TableEntry, ...]:
    """Return rows with figures, equal ones as one; `FIRST` and then the highest peak first."""
    groups: dict[Hashable, list[ComparisonRow]] = {}
    for row in sorted((r for r in comparison.rows if r.error is None), key=_order):
        groups.setdefault(_figures(row), []).append(row)
    letters = (*_LETTERS, *_NO_LETTER * len(groups))
    return tuple(
        TableEntry(letter, group[0], tuple(group[1:]))
        for letter, group in zip(letters, groups.values(), strict=False)
    )


def compiled_places(rows: Sequence[ComparisonRow]) -> tuple[str, ...]:
    """Return the places that rows were compiled for, each once."""
    return tuple(dict.fromkeys(c.on for row in rows for c in row.compiled))


def compiled_for(on: str, row: ComparisonRow) -> Compiled | None:
    """Return what XLA says of a row for a place; None where it was not compiled for it."""
    return next((c for c in row.compiled if c.on == on), None)


def _order(row: ComparisonRow) -> tuple[int, int, int]:
    first = FIRST.index(row.policy) if row.policy in FIRST else len(FIRST)
    return first, -(row.compared_nbytes or 0), row.recompute_flops or 0


def _figures(row: ComparisonRow) -> Hashable:
    """Return the figures that two rows have to share to be one entry."""
    return (
        *(row.kept_nbytes, row.host_nbytes, row.peak_nbytes, row.recompute_flops),
        *(row.time_fraction, row.time_interval, row.uncosted, row.measured, row.measure_error),
        *((c.on, c.peak_nbytes, c.fits, c.may_fit, c.error) for c in row.compiled),
    )

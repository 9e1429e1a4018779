"""The rows of a report as a reader sees them: folded, grouped, sorted and cut."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import get_args

from jaxresid.base.option_types import GroupBy, ReportView
from jaxresid.base.text.layer_paths import folded_scopes, pattern, scope_key
from jaxresid.render.style.words import aval_text, line_text, place_text, short_path
from jaxresid.results import NOWHERE, Computed, Report, Residual, Source

GROUPS: tuple[GroupBy, ...] = get_args(GroupBy)
VIEWS: tuple[ReportView, ...] = get_args(ReportView)


@dataclass(frozen=True, slots=True)
class View:
    """A choice of what to show.

    Attributes:
      show: one of `VIEWS`, to show that in full; None: the overview.
      verbose: show everything.
      group_by: one of `GROUPS`; None folds identical residuals only.
      top: the greatest number of rows; None shows all.
      min_bytes: leave out rows of fewer bytes.
      all: show arguments and literals too.
    """

    show: ReportView | None = None
    verbose: bool = False
    group_by: GroupBy | None = None
    top: int | None = 20
    min_bytes: int = 0
    all: bool = False


@dataclass(frozen=True, slots=True)
class ResidualRow:
    """One or more residuals that are shown as one.

    Attributes:
      residuals: the residuals of the row.
      title: what the residuals of a group have in common; None for a row of identical residuals,
        which is described by its `first`.
    """

    residuals: tuple[Residual, ...]
    title: str | None = None

    @property
    def first(self) -> Residual:
        """The first residual, which stands for all of a row of identical ones."""
        return self.residuals[0]

    @property
    def count(self) -> int:
        """The number of residuals."""
        return len(self.residuals)

    @property
    def nbytes(self) -> int:
        """The bytes of all residuals of the row."""
        return sum(r.nbytes for r in self.residuals)

    @property
    def source(self) -> Source:
        """The source of the first residual that is computed, with the modules of all of them."""
        each = [r.origin.source for r in self.residuals if isinstance(r.origin, Computed)]
        return replace(each[0], scope=folded_scopes(s.scope for s in each)) if each else NOWHERE


@dataclass(frozen=True, slots=True)
class ResidualRows:
    """The rows to show, biggest first, and the rows that were left out."""

    shown: tuple[ResidualRow, ...]
    hidden: tuple[ResidualRow, ...]

    @property
    def hidden_nbytes(self) -> int:
        """The bytes of the rows that were left out."""
        return sum(row.nbytes for row in self.hidden)


def rows(report: Report, view: View) -> ResidualRows:
    """Return the rows of a report under a view."""
    key, title = _GROUPINGS[view.group_by]
    groups: dict[Hashable, list[Residual]] = {}
    for i, residual in enumerate(report.residuals):
        if view.all or _is_shown(residual, view.group_by):
            groups.setdefault(key(residual, i), []).append(residual)
    found = [ResidualRow(tuple(g), title(g[0]) if title else None) for g in groups.values()]
    found.sort(key=lambda row: -row.nbytes)  # stable: equal ones stay in the vjp's order
    big = [row for row in found if row.nbytes >= view.min_bytes]
    small = [row for row in found if row.nbytes < view.min_bytes]
    top = len(big) if view.top is None else view.top
    return ResidualRows(tuple(big[:top]), tuple(big[top:] + small))


def _is_shown(residual: Residual, group_by: str | None) -> bool:
    kind = residual.origin.kind
    return kind in ("computed", "constant") or (kind == "argument" and group_by == "argument")


def _identity(residual: Residual, i: int) -> Hashable:
    o = residual.origin
    key: tuple[Hashable, ...] = (o.kind, residual.aval, residual.trips, residual.marks)
    if isinstance(o, Computed):
        return (
            *key,
            *(o.primitive, o.name, o.named_at, o.within, o.through),
            replace(o.source, scope=scope_key(o.scope)),
            pattern(o.path or ""),
        )
    return (*key, pattern(getattr(o, "path", "")))


def _kind(residual: Residual) -> str:
    return {
        "argument": "(arguments)",
        "constant": "(constants)",
        "literal": "(literals)",
        "computed": "(line unknown)",
    }[residual.origin.kind]


def _line(residual: Residual) -> str:
    location = getattr(residual.origin, "location", None)
    if location is None:
        return _kind(residual)
    return line_text(location)


def _function(residual: Residual) -> str:
    location = getattr(residual.origin, "location", None)
    if location is None:
        return _kind(residual)
    if location.is_of_loss:
        return place_text(location)
    return f"{short_path(location.file)} {location.function}"


def _name(residual: Residual) -> str:
    name = getattr(residual.origin, "name", None)
    return f"named {name!r}" if name else "(unnamed)"


def _primitive(residual: Residual) -> str:
    return getattr(residual.origin, "primitive", None) or _kind(residual)


def _scope(residual: Residual) -> str:
    if residual.origin.kind != "computed":
        return _kind(residual)
    return residual.origin.scope or "(no scope)"


def _argument(residual: Residual) -> str:
    path = getattr(residual.origin, "path", None)
    return pattern(path) if path else "(computed by the forward pass)"


def _titled(
    title: Callable[[Residual], str],
) -> tuple[Callable[[Residual, int], Hashable], Callable[[Residual], str]]:
    return lambda residual, i: title(residual), title


_GROUPINGS: dict[
    str | None,
    tuple[Callable[[Residual, int], Hashable], Callable[[Residual], str] | None],
] = {
    None: (_identity, None),
    "none": (lambda residual, i: i, None),
    "line": _titled(_line),
    "function": _titled(_function),
    "name": _titled(_name),
    "primitive": _titled(_primitive),
    "scope": _titled(_scope),
    "argument": _titled(_argument),
}


def shapes_text(row: ResidualRow, at_most: int = 3) -> str:
    """Return the distinct avals of a row with their counts: `f32[4,8] ×2, bf16[4]`."""
    counts: dict[str, int] = {}
    for residual in sorted(row.residuals, key=lambda r: -r.nbytes):
        text = aval_text(residual.aval)
        counts[text] = counts.get(text, 0) + 1
    listed = [text + (f" ×{n}" if n > 1 else "") for text, n in counts.items()]
    more = f" and {len(listed) - at_most} more" if len(listed) > at_most else ""
    return ", ".join(listed[:at_most]) + more

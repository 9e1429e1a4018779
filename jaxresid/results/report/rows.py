"""Residuals as rows of a table, one by one and summed by what they have in common."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jaxresid.base.option_types import ResidualKey
from jaxresid.base.text.short_repr import Shown
from jaxresid.base.text.units import format_bytes
from jaxresid.results.display import to_dataframe
from jaxresid.results.headline import count_text, headline
from jaxresid.results.result import Displayed
from jaxresid.results.target import PlaceInfo, Target

if TYPE_CHECKING:
    import pandas

# What groups residuals.
_RESIDUALS = "jaxresid.serialization.residual_table"


@dataclass(frozen=True, slots=True, repr=False)
class ResidualRow(Shown):
    """A residual as a row of `Report.to_dataframe()`.

    Attributes:
      number: its index in `Report.residuals`.
      kind: `computed`, or what needs no memory of its own: `argument`, `constant`, `literal`.
      nbytes: its bytes, all trips of loops included; on a mesh those of one device.
      dtype: the name of its dtype.
      shape: the shape of the whole array, stacked over the trips of loops.
      memory: whether it is in device or in host memory.
      primitive: the primitive that computes it; None where nothing does.
      name: its `checkpoint_name`, if any.
      file: the file of the user's line; None where none is known.
      line: the number of the line.
      function: the function that the line is in.
      code: the source of the line.
      module: the module path, as in `Source.scope`; None where there is none.
      library: the library's line that the user's line called, `flax/linen/linear.py:271`.
      argument: the path of the argument that it is, or is a view of.
      trips: the trips of the loops that stack it.
      within: the enclosing loops, calls and transforms, outermost first.
      phase: where it is read: `backward`, `recompute`, or both; None where nothing reads it.
      marks: its further properties, as in `Mark`.
    """

    number: int
    kind: str
    nbytes: int
    dtype: str
    shape: tuple[int, ...]
    memory: str
    primitive: str | None = None
    name: str | None = None
    file: str | None = None
    line: int | None = None
    function: str | None = None
    code: str | None = None
    module: str | None = None
    library: str | None = None
    argument: str | None = None
    trips: int = 1
    within: tuple[str, ...] = ()
    phase: str | None = None
    marks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class ResidualGroup(Shown):
    """Residuals that have something in common.

    Attributes:
      keys: what they have in common, a value for each of `ResidualGroups.by`; None where there is
        none, as of residuals without a name.
      nbytes: the bytes of all of them.
      share: that as a share of all groups.
      count: how many they are.
      code: the source of the line, where they have that in common; else ''.
    """

    keys: tuple[str | None, ...]
    nbytes: int
    share: float
    count: int
    code: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class ResidualGroups(Displayed):
    """The residuals of a report, summed by what they have in common.

    Attributes:
      target: what was reported on.
      place: the place that the figures are for.
      by: what they are summed by.
      rows: the groups, biggest first.
    """

    target: Target
    place: PlaceInfo
    by: tuple[ResidualKey, ...]
    rows: tuple[ResidualGroup, ...]

    def _headline(self) -> str:
        kept = f"{format_bytes(self.nbytes)} in {count_text(len(self.rows), 'group')}"
        by = f"by {' and '.join(self.by)}"
        return headline("ResidualGroups", self.target, [self.place.name], [kept, by])

    @property
    def nbytes(self) -> int:
        """The bytes of all groups."""
        return sum(row.nbytes for row in self.rows)

    def to_dataframe(self) -> pandas.DataFrame:
        """Return a DataFrame with a row for each group, and a column for each of `by`.

        Raises:
          JaxresidError: pandas is not installed.
        """
        return to_dataframe(self)


def grouped(report: object, by: Sequence[ResidualKey], *, all: bool) -> ResidualGroups:
    """Return the residuals of a report, summed by what they have in common.

    Raises:
      InputsError: there is no such key, or none at all.
    """
    groups: ResidualGroups = importlib.import_module(_RESIDUALS).grouped(report, by, all=all)
    return groups

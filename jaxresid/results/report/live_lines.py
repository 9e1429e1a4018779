"""What is live at the peak, added up by the line that makes it or the argument that it is."""

from __future__ import annotations

import re
from dataclasses import dataclass

from jaxresid.base.text.short_repr import Shown
from jaxresid.results.report.peak import LiveValue, Peak
from jaxresid.results.values import Location


@dataclass(frozen=True, slots=True, repr=False)
class LiveLine(Shown):
    """What is live at the peak of one line of code, or of one argument.

    Attributes:
      values: the values, the biggest first.
      argument: the name of the argument that they are in; None for what the program computes.
    """

    values: tuple[LiveValue, ...]
    argument: str | None = None

    @property
    def nbytes(self) -> int:
        """The bytes of all of them."""
        return sum(value.nbytes for value in self.values)

    @property
    def location(self) -> Location | None:
        """The line that computes them; None for an argument, and where it is not known."""
        return self.values[0].location


def live_lines(peak: Peak) -> tuple[LiveLine, ...]:
    """Return what is live at a peak by line and by argument, those of most bytes first."""
    groups: dict[tuple[str | None, str, int, str], list[LiveValue]] = {}
    for value in peak.live:
        where = value.location
        argument = None
        if value.primitive is None:
            argument = re.split(r"[\[.]", value.path or "", maxsplit=1)[0]
        file, line, function = (where.file, where.line, where.function) if where else ("", 0, "")
        groups.setdefault((argument, file, line, function), []).append(value)
    lines = [LiveLine(tuple(values), key[0]) for key, values in groups.items()]
    return tuple(sorted(lines, key=lambda line: -line.nbytes))

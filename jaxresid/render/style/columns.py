"""Tables with figures on the left, and policies on the right in the remaining width.

Figures of one column are in one unit, so that they can be compared at a glance.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.text import Text

_GAP = "  "
_NAME_WIDTH = 20  # where less is left for the policies, they stand above their figures
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_DECIMAL = ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP")


@dataclass(frozen=True, slots=True)
class Unit:
    """The unit of a column of figures."""

    name: str
    scale: int
    decimals: int

    def text(self, value: int) -> str:
        """Return a number in this unit: `14.12`; `<0.01` or `>-0.01` for what is too small."""
        shown = f"{value / self.scale:.{self.decimals}f}"
        if value == 0 or float(shown):
            return shown if value else "0"
        least = f"{10**-self.decimals:.{self.decimals}f}"
        return f"<{least}" if value > 0 else f">-{least}"

    def short(self, value: int) -> str:
        """Return a number with three digits, and no more decimals than the column: `0.87`."""
        shown = value / self.scale
        before = math.floor(math.log10(shown)) if shown > 0 else 0
        return f"{shown:.{max(min(2 - before, self.decimals), 0)}f}"


def bytes_unit(values: Iterable[int]) -> Unit:
    """Return the binary unit that fits the greatest of some numbers of bytes."""
    return _unit(values, _BINARY, 1024)


def flops_unit(values: Iterable[int]) -> Unit:
    """Return the decimal unit that fits the greatest of some numbers of FLOPs."""
    return _unit(values, _DECIMAL, 1000)


def _unit(values: Iterable[int], names: tuple[str, ...], base: int) -> Unit:
    biggest = max((abs(v) for v in values), default=0)
    power = 0
    while power + 1 < len(names) and biggest >= base ** (power + 1):
        power += 1
    scale = base**power
    return Unit(names[power], scale, 0 if power == 0 else 3 if biggest < 10 * scale else 2)


@dataclass(frozen=True, slots=True)
class Column:
    """A column: two lines of heading, and one text per policy, aligned to the right."""

    heading: tuple[str, str]
    texts: tuple[str, ...]
    style: str = ""
    styles: tuple[str, ...] = ()

    @property
    def width(self) -> int:
        """The number of characters in the widest heading or text."""
        return max(map(len, (*self.heading, *self.texts)))

    def cell(self, i: int) -> Text:
        """Return cell `i`, padded to the width of the column and followed by the gap."""
        style = self.styles[i] if self.styles else self.style
        return Text(self.texts[i].rjust(self.width) + _GAP, style=style)


def width_of(columns: Sequence[Column]) -> int:
    """Return the width of columns side by side, each with the gap that follows it."""
    return sum(column.width + len(_GAP) for column in columns)


def room_for(max_width: int) -> int:
    """Return how wide figures may be that have the policies beside them."""
    return max_width - _NAME_WIDTH


def headings(columns: Sequence[Column], *, beside: bool) -> Iterator[Text]:
    """Yield the two lines of heading; the policies have one only beside their figures."""
    for i in range(2):
        line = Text(style="dim")
        for column in columns:
            line.append(column.heading[i].rjust(column.width) + _GAP)
        line.append("policy" * (beside and i == 1))
        line.rstrip()
        yield line

"""The bytes over the program as a chart, with its passes and the peak marked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from jaxresid.base.text.units import format_bytes
from jaxresid.render.report.peak import op_text
from jaxresid.render.report.sparkline import can_encode, column
from jaxresid.render.style.words import line_text, place_text
from jaxresid.results import Peak, PhaseSpan

_BLOCKS = "▁▂▃▄▅▆▇█"
_ASCII = ".:#"
_TICK, _AXIS, _ASCII_AXIS = "┤", "│", "|"
_MARK, _ASCII_MARK = "▲", "^"
# So few of all points may be below the chart, where it shows the others so much better.
_FEW, _FLAT = 0.05, 3
_SHORT = {"forward": "fwd", "backward": "bwd", "update": "upd"}


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart of what is live over a program.

    Attributes:
      peak: the peak with the curve.
      rows: how many lines high it is, without those under it.
      encoding: the encoding of the stream that the text is for.
    """

    peak: Peak
    rows: int
    encoding: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        peak = self.peak
        is_block = can_encode(_BLOCKS + _TICK + _AXIS + _MARK, self.encoding)
        levels = _BLOCKS if is_block else _ASCII
        tick, axis = (_TICK, _AXIS) if is_block else (_ASCII_AXIS, _ASCII_AXIS)
        bottom = bottom_of(peak.curve)
        top, low = format_bytes(max(peak.curve)), format_bytes(bottom)
        margin = max(len(top), len(low))
        width = max(options.max_width - margin - 2, 1)
        rows = self.rows if max(peak.curve) > bottom else 1
        lines = chart_lines(peak.curve, bottom, width, rows, levels)
        for i, line in enumerate(lines):
            label = top if i == 0 else low if i == len(lines) - 1 else ""
            edge = tick if label else axis
            yield Text.assemble((f"{label.rjust(margin)} {edge}", "dim"), (line, "cyan"))
        indent = " " * (margin + 2)
        if phases := phases_line(peak.phases, len(peak.curve), width, axis):
            yield Text(f"{indent}{phases}", style="dim")
        mark = _MARK if is_block else _ASCII_MARK
        at = column(peak.curve_at, len(peak.curve), width)
        for line in mark_lines(peak, at, width, mark):
            yield Text(f"{indent}{line}")


def bottom_of(values: Sequence[int]) -> int:
    """Return the value that a chart begins at.

    It is the lowest, unless a few are so far below the others that these would look alike: before
    and after a scan little may be live, and within it much.
    """
    low, high = min(values), max(values)
    usual = sorted(values)[int(_FEW * len(values))]
    return usual if _FLAT * (high - usual) < high - low else low


def chart_lines(values: Sequence[int], low: int, width: int, rows: int, levels: str) -> list[str]:
    """Return values as lines of characters, `rows` of them, between `low` and their highest.

    Every column is as high as the greatest value in it, and empty where that is below `low`.

    Args:
      values: the values, from left to right.
      low: the value of the lowest step.
      width: the number of columns.
      rows: the number of lines.
      levels: the characters of a cell, from the lowest to a full one.
    """
    high = max(values)
    steps = rows * len(levels)
    heights = []
    for i in range(width):
        start = i * len(values) // width
        value = max(values[start : max((i + 1) * len(values) // width, start + 1)])
        # The lowest has one step, so that it is seen as well.
        height = 1 + (value - low) * (steps - 1) // (high - low) if high > low else steps
        heights.append(max(height, 0))
    lines = []
    for row in range(rows - 1, -1, -1):
        below = row * len(levels)
        cells = (min(max(height - below, 0), len(levels)) for height in heights)
        lines.append("".join(levels[cell - 1] if cell else " " for cell in cells))
    return lines


def phases_line(spans: Sequence[PhaseSpan], count: int, width: int, axis: str) -> str:
    """Return the names of passes under their columns, each but the first after a bar.

    Args:
      spans: the passes of a curve.
      count: the number of values of the curve.
      width: the number of columns that show them.
      axis: the bar.
    """
    if not spans or is_one_pass(spans):
        return ""
    starts = [-(-span.start * width // count) for span in spans]
    line = ""
    for span, start, stop in zip(spans, starts, [*starts[1:], width], strict=True):
        edge = f"{axis} " if start else ""
        room = stop - start - len(edge)
        name = span.phase if len(span.phase) <= room else _SHORT[span.phase]
        line += (edge + (name if len(name) <= room else ""))[: stop - start].ljust(stop - start)
    return line.rstrip()


def is_one_pass(spans: Sequence[PhaseSpan]) -> bool:
    """Return whether passes are those of a program without a gradient, which has no names."""
    return all(span.phase == "program" for span in spans)


def mark_lines(peak: Peak, at: int, width: int, mark: str) -> list[str]:
    """Return the mark under the peak's column with its place: beside it, or in a line of its own.

    Args:
      peak: the peak.
      at: the column of the peak.
      width: the number of columns.
      mark: the character that points up to it.
    """
    where = peak.location
    place = f"peak {op_text(peak)}", "peak"
    if where is not None:
        which = "in" if where.is_of_loss else "at"
        place = f"peak {which} {line_text(where)}", f"peak {which} {place_text(where)}"
    for text in place:
        if at + 2 + len(text) <= width:
            return [f"{' ' * at}{mark} {text}"]
        if len(text) + 1 <= at:
            return [f"{text} {mark}".rjust(at + 1)]
    short = f"{' ' * at}{mark} peak" if at + 6 <= width else f"peak {mark}".rjust(at + 1)
    return [short]

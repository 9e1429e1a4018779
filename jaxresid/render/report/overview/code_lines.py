"""The lines of code that keep most for the backward pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from jaxresid.base.text.units import format_bytes
from jaxresid.render.report.rows import ResidualRow, View, rows
from jaxresid.render.style.words import percent, place_text
from jaxresid.results import Computed, KeptBeyondPeak, Location, Report

_TOP = 5
# Lines that keep less than this share are one row.
_SMALL = 0.01
_CUT = "..."


@dataclass(frozen=True, slots=True)
class KeepingLines:
    """The lines that keep most, the biggest first, and the rest as one.

    Attributes:
      shown: the lines, each with its residuals.
      hidden: how many others there are.
      hidden_nbytes: the bytes that the others keep.
    """

    shown: tuple[ResidualRow, ...]
    hidden: int
    hidden_nbytes: int


def keeping_lines(report: Report) -> KeepingLines:
    """Return the lines of code that keep computed residuals, in device or host memory."""
    computed = tuple(r for r in report.residuals if isinstance(r.origin, Computed))
    kept = sum(r.nbytes for r in computed)
    found = [r for r in rows(report, View(group_by="line", top=None)).shown if _is_computed(r)]
    shown = [row for row in found[:_TOP] if row.nbytes >= _SMALL * kept and row.nbytes]
    nbytes = kept - sum(row.nbytes for row in shown)
    return KeepingLines(tuple(shown), len(found) - len(shown), nbytes)


def _is_computed(row: ResidualRow) -> bool:
    return all(isinstance(r.origin, Computed) for r in row.residuals)


def render_code_lines(report: Report, *, is_compact: bool) -> Iterator[RenderableType]:
    """Yield what is kept, and the lines that keep most of it.

    Args:
      report: the report.
      is_compact: whether each line of code has one row, however narrow the terminal is.
    """
    totals = report.totals
    kept = totals.computed_nbytes + totals.host_nbytes
    yield Text.assemble(*_title(report))
    if report.beyond_peak is not None:
        yield Text(beyond_peak_text(report.beyond_peak), style="yellow")
    found = keeping_lines(report)
    if not kept:
        return
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    for row in found.shown:
        figures = Text(format_bytes(row.nbytes), style="cyan")
        share = Text(percent(row.nbytes, kept), style="dim")
        origin = row.first.origin
        where = origin.location if isinstance(origin, Computed) else None
        line = CodeLine(where, row.source.scope, row.title or "", is_compact)
        table.add_row(figures, share, line)
    if found.hidden:
        plural = "line" if found.hidden == 1 else "lines"
        table.add_row(
            Text(format_bytes(found.hidden_nbytes), style="dim"),
            Text(percent(found.hidden_nbytes, kept), style="dim"),
            Text(f"{found.hidden} more {plural}: --view residuals", style="dim"),
        )
    yield table


def _title(report: Report) -> Iterator[str | tuple[str, str]]:
    totals = report.totals
    yield f"kept for the backward pass: {format_bytes(totals.computed_nbytes)}", "bold"
    others = (
        (totals.host_nbytes, "in host memory"),
        (totals.arguments_nbytes + totals.host_arguments_nbytes, "of arguments"),
        (totals.constants_nbytes, "of constants"),
    )
    more = [f"{format_bytes(nbytes)} {what}" for nbytes, what in others if nbytes]
    if more:
        yield f", and {', '.join(more)}", "dim"


def beyond_peak_text(why: KeptBeyondPeak) -> str:
    """Return why more is kept than the peak, without what is less than 1 % of that."""
    reasons = (
        (why.duplicate_nbytes, "are values that are kept twice"),
        (why.free_nbytes, "are made anew from constants"),
        (why.unread_nbytes, "are never read"),
        (why.other_nbytes, "are computed where they are read, or freed before the peak"),
    )
    least = sum(nbytes for nbytes, _ in reasons) / 100
    each = [f"{format_bytes(nbytes)} {what}" for nbytes, what in reasons if nbytes > least]
    return f"more than the peak: {', '.join(each)}"


@dataclass(frozen=True, slots=True)
class CodeLine:
    """A line of code with its place: beside each other where both fit, else under it.

    Attributes:
      location: the line; None where it is not known.
      module: the module whose code it is; '' where there is none.
      title: what stands there where the line is not known.
      is_compact: whether the code is cut to what is left beside its place instead.
    """

    location: Location | None
    module: str
    title: str
    is_compact: bool

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        where, width = self.location, options.max_width
        if where is None:
            yield Text(self.title)
            return
        rest = "" if where.is_of_loss else f":{where.line} {where.function}"
        place = _place(place_text(where).removesuffix(f":{where.line}"), rest, width)
        scope = f"  {self.module}" if self.module else ""
        code = Text(where.code, style="green")
        if len(place) + 2 + code.cell_len + len(scope) <= width:
            yield Text.assemble(place, "  ", code, (scope, "dim"))
        elif len(place) + 2 + code.cell_len <= width:
            yield Text.assemble(place, "  ", code)
        elif self.is_compact:
            yield Text.assemble(place, "  ", _cut(code, width - len(place) - 2))
        else:
            if len(place) + len(scope) <= width:
                yield Text.assemble(place, (scope, "dim"))
            else:
                yield Text(place)
            yield Text.assemble("  ", _cut(code, width - 2))


def _place(file: str, rest: str, width: int) -> str:
    """Return a place, without as many of the first folders of its path as there is no room for."""
    parts = file.split("/")
    while len(parts) > 1 and len("/".join(parts)) + len(rest) > width:
        parts = [_CUT, *parts[2:]] if parts[0] == _CUT else [_CUT, *parts[1:]]
    text = "/".join(parts) + rest
    return text if len(text) <= width else text[: max(width, 1)]


def _cut(code: Text, width: int) -> Text:
    if code.cell_len <= width:
        return code
    if width < 2 * len(_CUT):
        return Text()
    return Text.assemble(code[: width - len(_CUT)], (_CUT, "dim"))

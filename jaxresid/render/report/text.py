"""The report for a terminal.

It has the totals, the cost, the peak, the checkpoints, and the residuals that are kept, biggest
first, with the line that keeps each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from jaxresid.layer_paths import folded
from jaxresid.model import Computed, Report, Residual
from jaxresid.option_types import GroupBy
from jaxresid.render.report.checkpoints import render_checkpoints
from jaxresid.render.report.compiled import compiled_lines, remarks
from jaxresid.render.report.cost import render_cost
from jaxresid.render.report.heading import heading
from jaxresid.render.report.offloading import render_offloading
from jaxresid.render.report.peak import render_peak
from jaxresid.render.report.rows import GROUPS, ResidualRow, ResidualRows, View, rows, shapes_text
from jaxresid.render.style.words import aval_text, computed_text, mark_text, percent, place_text
from jaxresid.render.style.wrapping import SourceLines
from jaxresid.safe_text import safe_value
from jaxresid.units import format_bytes

_NOT_PEAK = "Residual bytes are what autodiff keeps; the program's peak memory is above."


def render_report(report: Report, view: View, encoding: str = "utf-8") -> RenderableType:
    """Return the whole text report.

    Args:
      report: the report to show.
      view: which rows to show.
      encoding: the encoding of the stream that the text is for.
    """
    report = safe_value(report)
    found = rows(report, view)
    parts: list[RenderableType] = [heading(report.target, report.jax, report.mesh, [report.place])]
    parts += [_headline(report), Text()]
    parts += [*render_cost(report), Text(), *_peak(report, encoding)]
    if report.checkpoints:
        parts += [*render_checkpoints(report.checkpoints), Text()]
    if report.offloading is not None:
        parts += [*render_offloading(report), Text()]
    if found.shown:
        parts += [Text("residuals", style="bold"), _table(report, found), Text()]
    if report.compiled and report.peak is not None:
        parts += [Text("what XLA says", style="bold"), *_compiled(report), Text()]
    parts += _footer(report, found, view)
    return Group(*parts)


def print_report(report: Report, *, group_by: GroupBy | None, top: int | None, all: bool) -> None:
    """Print a report to stdout, or into the notebook's cell.

    Args:
      report: the report to print.
      group_by: what to group residuals by, one of `GROUPS`; None folds identical residuals only.
      top: the greatest number of rows; None shows all.
      all: show arguments and literals too.

    Raises:
      ValueError: there is no such grouping.
    """
    if group_by is not None and group_by not in GROUPS:
        raise ValueError(f"group_by must be one of {', '.join(GROUPS)}, not {group_by!r}")
    view = View(group_by=group_by, top=top, all=all)
    console = Console(highlight=False)
    console.print(render_report(report, view, console.encoding))


def _peak(report: Report, encoding: str) -> Iterable[RenderableType]:
    """Return the block on the peak: the estimate, or what XLA says where there is none."""
    if report.peak is not None:
        return render_peak(report, encoding)
    return [Text("peak, by XLA", style="bold"), *_compiled(report), Text()]


def _compiled(report: Report) -> Iterable[RenderableType]:
    for i, compiled in enumerate(report.compiled):
        yield from [Text()] * bool(i)
        yield from compiled_lines(compiled)
    if not report.compiled:
        yield Text(f"  not known, as {report.place.name}'s compiler was not asked")


def _headline(report: Report) -> Table:
    totals = report.totals
    count: Counter[str] = Counter()
    for r in report.residuals:
        count[f"{r.aval.memory} {r.origin.kind}"] += 1
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    lines = [
        (totals.computed_nbytes, "kept for the backward pass", "device computed", "bold"),
        (
            totals.arguments_nbytes,
            "arguments the backward pass reads (already in memory)",
            "device argument",
            "",
        ),
        (totals.host_nbytes, "kept in host memory", "host computed", ""),
        (totals.constants_nbytes, "constants", "device constant", ""),
    ]
    if totals.host_arguments_nbytes:
        needed = "arguments the backward pass reads, in host memory"
        lines.insert(2, (totals.host_arguments_nbytes, needed, "host argument", ""))
    for nbytes, what, kind, style in lines:
        n = count[kind]
        plural = "residual" if n == 1 else "residuals"
        table.add_row(
            Text(format_bytes(nbytes), style=style or ("dim" if not nbytes else "")),
            Text.assemble((what, style), (f"  {n} {plural}" if n else "", "dim")),
        )
    return table


def _table(report: Report, rows: ResidualRows) -> Table:
    totals = report.totals
    kept = totals.computed_nbytes + totals.host_nbytes
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    for row in rows.shown:
        counted = [r for r in row.residuals if r.origin.kind == "computed"]
        share = percent(sum(r.nbytes for r in counted), kept) if counted else ""
        table.add_row(
            Text(format_bytes(row.nbytes), style="cyan"),
            Text(share, style="dim"),
            Group(*(_group_lines(row) if row.title else _lines(row))),
        )
    return table


def _group_lines(row: ResidualRow) -> list[RenderableType]:
    lines: list[RenderableType] = [Text(str(row.title), style="bold")]
    location = getattr(row.first.origin, "location", None)
    if location is not None and row.title and f":{location.line} " in row.title:
        lines.append(Padding(Text(location.code, style="green"), (0, 0, 0, 2)))
    lines.append(Text(shapes_text(row), style="dim"))
    return lines


def row_text(row: ResidualRow) -> str:
    """Return the first line of a row of identical residuals, without styles."""
    return _first_line(row).plain


def _first_line(row: ResidualRow) -> Text:
    residual, origin = row.first, row.first.origin
    line = Text()
    if row.count > 1:
        line.append(f"×{row.count} ", style="bold magenta")
    line.append(aval_text(residual.aval), style="bold")
    line.append("  " + _what(row))
    if isinstance(origin, Computed) and origin.within:
        line.append("  in " + " › ".join(origin.within), style="dim")
    return line


def _lines(row: ResidualRow) -> list[RenderableType]:
    origin = row.first.origin
    lines: list[RenderableType] = [_first_line(row)]
    if not isinstance(origin, Computed):
        return lines
    marks = tuple(map(mark_text, row.first.marks))
    lines.append(SourceLines(row.source, marks, tuple(_notes(row, origin))))
    return lines


def _what(row: ResidualRow) -> str:
    origin = row.first.origin
    path = folded(getattr(r.origin, "path", None) or "" for r in row.residuals)
    if origin.kind == "argument":
        return f"argument {path}"
    if origin.kind == "literal":
        return f"literal {origin.value}"
    if origin.kind == "constant":
        return "constant that the function closes over"
    return computed_text(origin, path)


def _notes(row: ResidualRow, origin: Computed) -> Iterable[str]:
    residual = row.first
    if origin.named_at is not None and origin.named_at.line != getattr(origin.location, "line", 0):
        yield f"named at {place_text(origin.named_at)}"
    for phase, words in (("backward", "needed by"), ("recompute", "needed to recompute")):
        read = _readers(residual, origin, phase)
        if read:
            yield f"{words} {read}"


def _readers(residual: Residual, origin: Computed, phase: str, at_most: int = 2) -> str:
    """Return the lines that read a residual in a phase.

    The text is empty where the only such line is that of the residual itself.
    """
    places: dict[str, list[str]] = {}
    for consumer in residual.consumers:
        if consumer.location is not None and consumer.phase == phase:
            primitives = places.setdefault(place_text(consumer.location), [])
            if consumer.primitive not in primitives:
                primitives.append(consumer.primitive)
    if origin.location is not None and set(places) == {place_text(origin.location)}:
        return ""
    listed = [f"{place} ({', '.join(p[:2])})" for place, p in list(places.items())[:at_most]]
    more = len(places) - at_most
    return ", ".join(listed) + (f" and {more} more lines" if more > 0 else "")


def _footer(report: Report, rows: ResidualRows, view: View) -> list[RenderableType]:
    lines: list[RenderableType] = []
    if rows.hidden:
        n = len(rows.hidden)
        plural = "row" if n == 1 else "rows"
        how = "--min-bytes hides them" if view.all and view.top is None else "--all shows them"
        lines.append(
            Text(f"{n} smaller {plural}, {format_bytes(rows.hidden_nbytes)}; {how}.", style="dim")
        )
    for warning in report.warnings:
        lines.append(Text(f"warning: {warning}", style="yellow"))
    lines.append(Text(_NOT_PEAK, style="dim"))
    lines += [Text(remark, style="dim") for remark in remarks(report.compiled)]
    return lines

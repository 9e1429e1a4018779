"""The residuals in full: their bytes by kind, and a row for each, with the line that keeps it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from jaxresid.base.text.layer_paths import folded
from jaxresid.base.text.units import format_bytes
from jaxresid.render.report.rows import ResidualRow, ResidualRows, View, rows, shapes_text
from jaxresid.render.style.words import aval_text, computed_text, mark_text, percent, place_text
from jaxresid.render.style.wrapping import SourceLines
from jaxresid.results import Computed, Report, Residual


def render_residuals(report: Report, view: View) -> Iterator[RenderableType]:
    """Yield the table of residuals, the biggest first, and how many rows are left out.

    Args:
      report: the report.
      view: which rows to show.
    """
    found = rows(report, view)
    if found.shown:
        yield Text("residuals", style="bold")
        yield _table(report, found)
    if found.hidden:
        n = len(found.hidden)
        plural = "row" if n == 1 else "rows"
        how = "--min-bytes hides them" if view.all and view.top is None else "--all shows them"
        text = f"{n} smaller {plural}, {format_bytes(found.hidden_nbytes)}; {how}."
        yield Text(text, style="dim")


def render_totals(report: Report) -> Table:
    """Return a table of the bytes of residuals by where they are, and how many there are."""
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

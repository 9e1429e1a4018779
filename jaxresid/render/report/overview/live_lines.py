"""What is live at the peak of a program without a gradient, by line and by argument."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from jaxresid.base.text.layer_paths import folded_scopes
from jaxresid.base.text.units import format_bytes
from jaxresid.render.report.overview.code_lines import CodeLine
from jaxresid.render.report.program_arrays import arrays_text
from jaxresid.render.style.words import kind_text, kinds_text, percent
from jaxresid.results import LiveLine, Report, live_lines

_TOP = 5
# Lines of less than this share of the peak are one row.
_SMALL = 0.01


def render_live_lines(report: Report, *, is_compact: bool) -> Iterator[RenderableType]:
    """Yield what is live at the peak, and in a sentence what goes in and comes out.

    Args:
      report: the report of a program that takes no gradient.
      is_compact: whether each line of code has one row, however narrow the terminal is.
    """
    peak = report.peak
    if peak is not None:
        yield Text(f"live at the peak: {format_bytes(peak.nbytes)}", style="bold")
        lines = live_lines(peak)
        shown = [line for line in lines[:_TOP] if line.nbytes >= _SMALL * peak.nbytes]
        table = Table.grid(padding=(0, 2))
        table.add_column(justify="right", no_wrap=True)
        table.add_column(justify="right", no_wrap=True)
        table.add_column(overflow="fold")
        for line in shown:
            modules = folded_scopes(value.source.scope for value in line.values)
            code = CodeLine(line.location, modules, line_title(line), is_compact)
            figures = Text(format_bytes(line.nbytes), style="cyan")
            table.add_row(figures, Text(percent(line.nbytes, peak.nbytes), style="dim"), code)
        if rest := lines[len(shown) :]:
            nbytes = sum(line.nbytes for line in rest)
            table.add_row(
                Text(format_bytes(nbytes), style="dim"),
                Text(percent(nbytes, peak.nbytes), style="dim"),
                Text(f"{len(rest)} more: --view peak", style="dim"),
            )
        yield table
    if text := arrays_text(report):
        yield Text(text, style="dim")


def line_title(line: LiveLine) -> str:
    """Return what stands for values that no line is known of: `argument params`."""
    kinds = {value.kind for value in line.values}
    (kind, *others) = sorted(kinds)
    if line.argument:
        return f"{'argument' if others else kind_text(kind)} {line.argument}"
    known = "" if others else kinds_text(kind)
    return known if line.argument is not None and known else f"{known} (line unknown)".strip()

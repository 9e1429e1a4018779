"""The report on one screen, as long as there is room for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from jaxresid.render.report.compiled import remarks
from jaxresid.render.report.estimates import interval_remarks
from jaxresid.render.report.gradients import render_gradients
from jaxresid.render.report.heading import jax_text
from jaxresid.render.report.overview.chart import Chart
from jaxresid.render.report.overview.checkpoints import grouped, render_groups
from jaxresid.render.report.overview.code_lines import render_code_lines
from jaxresid.render.report.overview.findings import finding_lines, render_findings
from jaxresid.render.report.overview.lead import lead
from jaxresid.render.report.overview.live_lines import render_live_lines
from jaxresid.render.report.overview.parts import PartsBar, parts_of
from jaxresid.render.style.wrapping import FlowingParts
from jaxresid.results import Report

# So many lines are before the findings, at most, where they are at least so wide.
MOST_LINES = 35
_ROWS = 6
_MOST_GRADIENTS = 6
_MORE = "-v shows all; --view peak, residuals, checkpoints, modules or timeline"
_MORE_WITHOUT_GRADIENT = "-v shows all; --view peak, modules or timeline"


@dataclass(frozen=True, slots=True)
class _Size:
    """How much is shown: lines of the chart, code beside its place only, groups of checkpoints."""

    rows: int
    is_compact: bool
    groups: int


_SIZES = (
    _Size(_ROWS, False, 4),
    _Size(4, False, 4),
    _Size(_ROWS, True, 4),
    _Size(4, True, 2),
    _Size(4, True, 0),
)


@dataclass(frozen=True, slots=True)
class Overview:
    """A report without what `--verbose` adds.

    Attributes:
      report: the report, with safe texts.
      encoding: the encoding of the stream that the text is for.
    """

    report: Report
    encoding: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for size in _SIZES:
            above = Group(*_above(self.report, self.encoding, size))
            if len(console.render_lines(above, options, pad=False)) <= MOST_LINES:
                break
        yield above
        yield from _below(self.report)


def _above(report: Report, encoding: str, size: _Size) -> Iterator[RenderableType]:
    yield from lead(report)
    yield Text()
    yield from made_of(report, encoding, size.rows)
    if report.target.has_gradient:
        yield from render_code_lines(report, is_compact=size.is_compact)
    else:
        yield from render_live_lines(report, is_compact=size.is_compact)
    listed = list(render_gradients(report, _MOST_GRADIENTS))
    if listed:
        yield Text()
        yield from listed
    if report.checkpoints:
        yield Text()
        yield from render_groups(grouped(report.checkpoints), size.groups)


def made_of(report: Report, encoding: str, rows: int) -> Iterator[RenderableType]:
    """Yield what makes up the peak, and the chart, followed by an empty line; nothing if unknown.

    Args:
      report: the report.
      encoding: the encoding of the stream that the text is for.
      rows: how many lines high the chart is.
    """
    parts = parts_of(report)
    if parts:
        yield PartsBar(parts, encoding)
    if report.peak is not None and report.peak.curve:
        yield Chart(report.peak, rows, encoding)
    if parts:
        yield Text()


def _below(report: Report) -> Iterator[RenderableType]:
    found = finding_lines(report)
    if found:
        yield Text()
        yield from render_findings(found)
    yield Text()
    for warning in report.warnings:
        yield Text(f"warning: {warning}", style="yellow")
    yield from notes(report)


def notes(report: Report, *, is_short: bool = True) -> Iterator[RenderableType]:
    """Yield what the figures are, and, below a text that is short, what else there is to know."""
    if is_short:
        place = report.place
        about = [jax_text(report.jax), f"{place.name}: {place.origin}"]
        yield FlowingParts([Text(text) for text in about], style="dim")
    told = (*remarks(report.compiled), *_interval_remarks(report))
    yield from (Text(remark, style="dim") for remark in told)
    if is_short:
        more = _MORE if report.target.has_gradient else _MORE_WITHOUT_GRADIENT
        yield Text(more, style="dim")


def _interval_remarks(report: Report) -> tuple[str, ...]:
    if report.peak is None or report.peak.uncounted:
        return ()
    return interval_remarks([report.place])

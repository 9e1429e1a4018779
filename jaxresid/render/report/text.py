"""The report for a terminal: the overview, one thing in full, or everything."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from jaxresid.base.option_types import GroupBy, ReportView
from jaxresid.base.text.safe_text import safe_value
from jaxresid.base.text.units import format_bytes
from jaxresid.render.report.checkpoints import render_checkpoints
from jaxresid.render.report.compiled import compiled_lines
from jaxresid.render.report.cost import render_cost
from jaxresid.render.report.gradients import render_gradients
from jaxresid.render.report.heading import about
from jaxresid.render.report.offloading import render_offloading
from jaxresid.render.report.overview.chart import Chart, is_one_pass
from jaxresid.render.report.overview.findings import finding_lines, render_findings
from jaxresid.render.report.overview.lead import lead
from jaxresid.render.report.overview.modules import render_modules
from jaxresid.render.report.overview.screen import Overview, made_of, notes
from jaxresid.render.report.peak import render_live
from jaxresid.render.report.program_arrays import render_arrays
from jaxresid.render.report.residuals import render_residuals, render_totals
from jaxresid.render.report.rows import GROUPS, VIEWS, View
from jaxresid.render.style.words import percent
from jaxresid.results import Peak, Report

_TOP = 20
_ROWS = 8
_TALL = 16
_NOT_PEAK = "Residual bytes are what autodiff keeps; the program's peak memory is above."


def render_report(report: Report, view: View, encoding: str = "utf-8") -> RenderableType:
    """Return the text report.

    Args:
      report: the report to show.
      view: what to show.
      encoding: the encoding of the stream that the text is for.
    """
    report = safe_value(report)
    if view.verbose:
        return Group(*_everything(report, view, encoding))
    if view.show is not None:
        return Group(*lead(report), Text(), *_one(report, view, encoding), Text(), *_last(report))
    return Overview(report, encoding)


def print_report(
    report: Report,
    *,
    view: ReportView | None,
    verbose: bool,
    group_by: GroupBy | None,
    top: int | None,
    all: bool,
) -> None:
    """Print a report to stdout, or into the notebook's cell.

    Args:
      report: the report to print.
      view: the one thing to show in full, one of `VIEWS`; None: the overview.
      verbose: show everything.
      group_by: what to group residuals by, one of `GROUPS`; None folds identical residuals only.
      top: the greatest number of rows of residuals; None: 20, or with `all` all.
      all: show arguments and literals too.

    Raises:
      ValueError: there is no such view or grouping, or rows of residuals are chosen and none shown.
    """
    if group_by is not None and group_by not in GROUPS:
        raise ValueError(f"group_by must be one of {', '.join(GROUPS)}, not {group_by!r}")
    if view is not None and view not in VIEWS:
        raise ValueError(f"view must be one of {', '.join(VIEWS)}, not {view!r}")
    chooses = group_by is not None or top is not None or all
    if chooses and view != "residuals" and not verbose:
        raise ValueError(
            'group_by, top and all choose rows of residuals: add view="residuals" or verbose=True'
        )
    most = _TOP if top is None and not all else top
    chosen = View(show=view, verbose=verbose, group_by=group_by, top=most, all=all)
    console = Console(highlight=False)
    console.print(render_report(report, chosen, console.encoding))


def _everything(report: Report, view: View, encoding: str) -> Iterator[RenderableType]:
    yield from lead(report)
    yield Text()
    yield from about(report.target, report.jax, [report.place], report.mesh)
    yield Text()
    if report.target.has_gradient:
        yield render_totals(report)
        yield Text()
    yield from render_cost(report)
    yield Text()
    yield from made_of(report, encoding, _ROWS)
    if report.peak is not None:
        yield from render_live(report)
        yield Text()
    yield from _spaced(render_arrays(report))
    if report.checkpoints:
        yield from render_checkpoints(report.checkpoints)
        yield Text()
    if report.offloading is not None:
        yield from render_offloading(report)
        yield Text()
    yield from _spaced(render_gradients(report))
    yield from _spaced(render_residuals(report, view))
    yield from _spaced(_compiled(report))
    yield from _spaced(_findings(report))
    yield from _last(report, is_short=False)
    if report.target.has_gradient:
        yield Text(_NOT_PEAK, style="dim")


def _one(report: Report, view: View, encoding: str) -> Iterator[RenderableType]:
    """Yield the one thing that is to be shown."""
    if view.show == "peak":
        yield from made_of(report, encoding, _ROWS)
        yield from render_live(report, None)
        if report.arguments or report.outputs:
            yield Text()
        yield from render_arrays(report, None)
        yield from _compiled(report)
    elif view.show in ("residuals", "checkpoints") and not report.target.has_gradient:
        yield Text(f"no {view.show}: {report.target.name} takes no gradient")
    elif view.show == "residuals":
        yield render_totals(report)
        yield Text()
        yield from _spaced(render_gradients(report))
        yield from render_residuals(report, view)
    elif view.show == "checkpoints":
        yield from render_checkpoints(report.checkpoints)
    elif view.show == "modules":
        yield from render_modules(report)
    elif report.peak is None or not report.peak.curve:
        yield Text(f"no timeline: the peak on {report.place.name} is not estimated, XLA gives it")
    else:
        yield Chart(report.peak, _TALL, encoding)
        if not is_one_pass(report.peak.phases):
            yield Text()
            yield _phases(report.peak)


def _phases(peak: Peak) -> Table:
    """Return a table of the passes: how much of the program each is, and the most that it takes."""
    table = Table.grid(padding=(0, 2))
    for justify in ("left", "right", "right"):
        table.add_column(justify=justify, no_wrap=True)
    table.add_row(*(Text(name, style="dim") for name in ("pass", "of all ops", "most at once")))
    for span in peak.phases:
        share = percent(span.stop - span.start, len(peak.curve))
        table.add_row(Text(span.phase), Text(share), Text(format_bytes(span.nbytes)))
    return table


def _compiled(report: Report) -> Iterator[RenderableType]:
    for i, compiled in enumerate(report.compiled):
        yield Text("what XLA says", style="bold") if not i else Text()
        yield from compiled_lines(compiled, report.target)
    if not report.compiled and report.peak is None:
        yield Text(f"not known, as {report.place.name}'s compiler was not asked")


def _findings(report: Report) -> Iterator[RenderableType]:
    found = finding_lines(report)
    if found:
        yield from render_findings(found)


def _spaced(block: Iterator[RenderableType]) -> Iterator[RenderableType]:
    """Yield a block and an empty line after it, if there is anything in it."""
    lines = list(block)
    yield from lines
    yield from [Text()] * bool(lines)


def _last(report: Report, *, is_short: bool = True) -> Iterator[RenderableType]:
    for warning in report.warnings:
        yield Text(f"warning: {warning}", style="yellow")
    yield from notes(report, is_short=is_short)

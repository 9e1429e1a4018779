"""The report in a notebook: the answer, the bytes over time, and tables that unfold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from rich.console import Group

from jaxresid.base.text.safe_text import safe_value
from jaxresid.base.text.units import format_bytes
from jaxresid.render.notebook.parts import (
    answered,
    folded,
    paragraph,
    pictured,
    plain_lines,
    printed,
    table,
    view,
)
from jaxresid.render.report.checkpoints import (
    LEGEND,
    confirmation_text,
    figure_parts,
    finding_text,
    site_parts,
)
from jaxresid.render.report.compiled import buffer_text
from jaxresid.render.report.compiled import verdict_text as fits_text
from jaxresid.render.report.cost import cost_remarks, cost_rows
from jaxresid.render.report.heading import about
from jaxresid.render.report.overview.findings import finding_lines, render_findings
from jaxresid.render.report.overview.lead import lead
from jaxresid.render.report.peak import (
    breakdown_parts,
    hidden_text,
    live_text,
    op_text,
    peak_remarks,
    top_live,
)
from jaxresid.render.report.program_arrays import arrays_text, render_arrays
from jaxresid.render.report.residuals import row_text
from jaxresid.render.report.rows import ResidualRow, View, rows, shapes_text
from jaxresid.render.style.words import line_text, percent, source_notes, verdict_text
from jaxresid.render.svg.icicle import icicle
from jaxresid.render.svg.timeline import timeline
from jaxresid.results import Checkpoint, CompiledBuffer, LiveValue, Report, Source

_WIDE = 140


def report_html(report: Report) -> str:
    """Return a report as self-contained HTML: the answer, the bytes over time, the rest folded.

    Everything that comes from the user's code is escaped.
    """
    lifetimes = report.lifetimes
    report = safe_value(replace(report, lifetimes=()))
    return view(
        answered(plain_lines(lead(report), _WIDE)),
        *map(paragraph, (f"warning: {warning}" for warning in report.warnings)),
        _timeline(replace(report, lifetimes=lifetimes)),
        *_peak(report),
        *_kept_or_passed(report),
        folded(_count(finding_lines(report), "finding"), _findings(report)),
        folded("work", *_cost(report)),
        folded("about the figures", *_about(report)),
    )


def _kept_or_passed(report: Report) -> Iterable[str]:
    """Yield what is kept and the checkpoints, or without a gradient what goes in and out."""
    if report.target.has_gradient:
        yield _kept(report)
        yield folded(_count(report.checkpoints, "checkpoint"), _checkpoints(report))
    elif text := arrays_text(report):
        yield folded(text, printed(Group(*render_arrays(report))))


def _timeline(report: Report) -> str:
    has_curve = report.peak is not None and report.peak.curve
    return pictured(timeline(report)) if has_curve else ""


def _count(found: Sequence[object], one: str) -> str:
    return f"{len(found)} {one}" if len(found) == 1 else f"{len(found)} {one}s"


def _kept(report: Report) -> str:
    found = rows(report, View())
    totals = report.totals
    parts = [table(("bytes", "value", "where", "code"), map(_residual, found.shown))]
    if found.hidden:
        nbytes = format_bytes(found.hidden_nbytes)
        parts.append(paragraph(f"{len(found.hidden)} smaller rows, {nbytes}"))
    if totals.computed_nbytes + totals.host_nbytes:
        parts.insert(0, pictured(icicle(report)))
    others = (
        (totals.host_nbytes, "in host memory"),
        (totals.arguments_nbytes + totals.host_arguments_nbytes, "of arguments"),
        (totals.constants_nbytes, "of constants"),
    )
    more = [f"{format_bytes(nbytes)} {what}" for nbytes, what in others if nbytes]
    kept = f"kept for the backward pass: {format_bytes(totals.computed_nbytes)}"
    return folded(f"{kept}{', and ' * bool(more)}{', '.join(more)}", *parts)


def _checkpoints(report: Report) -> str:
    names = ("checkpoint", "verdict", LEGEND, "findings")
    return table(names, map(_checkpoint, report.checkpoints))


def _findings(report: Report) -> str:
    found = finding_lines(report)
    return printed(Group(*render_findings(found))) if found else ""


def _about(report: Report) -> Iterable[str]:
    each = about(report.target, report.jax, [report.place], report.mesh)
    yield from map(paragraph, plain_lines(each, _WIDE))
    if report.peak is not None:
        yield from map(paragraph, peak_remarks(report.peak, report.place))


def _cost(report: Report) -> Iterable[str]:
    yield table(
        ("work", "phase", "detail"),
        ((row.figure, row.phase, row.detail) for row in cost_rows(report)),
    )
    yield from map(paragraph, cost_remarks(report))


def _peak(report: Report) -> Iterable[str]:
    peak = report.peak
    if peak is None:
        yield from _compiled(report)
        return
    top = top_live(peak)
    names = ("bytes", "share", "live at the peak", "where", "code")
    beside = (op_text(peak), *_place(peak.source))
    yield folded(
        f"live at the peak: {', '.join(breakdown_parts(peak))}",
        paragraph(f"the peak is {' '.join(filter(None, beside))}"),
        table(names, (_live(live, peak.nbytes) for live in top.shown)),
        paragraph(hidden_text(top)) if top.hidden else "",
    )


def _compiled(report: Report) -> Iterable[str]:
    """Yield what XLA says of a program whose peak is not estimated."""
    for compiled in report.compiled:
        names = ("bytes", "buffer", "where", "code")
        yield folded(
            f"peak, by XLA: {fits_text(compiled)}",
            paragraph(compiled.error) if compiled.error is not None else "",
            table(names, map(_buffer, compiled.buffers)),
        )


def _buffer(buffer: CompiledBuffer) -> Sequence[str]:
    count = f"×{buffer.count} " if buffer.count > 1 else ""
    return format_bytes(buffer.nbytes), f"{count}{buffer_text(buffer)}", *_cells(buffer.source)


def _live(live: LiveValue, peak_nbytes: int) -> Sequence[str]:
    count = f"×{live.count} " if live.count > 1 else ""
    return (
        format_bytes(live.nbytes),
        percent(live.nbytes, peak_nbytes),
        f"{count}{live_text(live)}",
        *_cells(live.source),
    )


def _checkpoint(checkpoint: Checkpoint) -> Sequence[str]:
    verdict = f"{verdict_text(checkpoint.verdict)}: {checkpoint.reason}"
    return (
        " · ".join(site_parts(checkpoint)),
        "; ".join(filter(None, (verdict, confirmation_text(checkpoint)))),
        " · ".join(figure_parts(checkpoint)),
        " ".join(finding_text(f, checkpoint) for f in checkpoint.findings),
    )


def _residual(row: ResidualRow) -> Sequence[str]:
    value = row_text(row) if row.title is None else f"{row.title} {shapes_text(row)}"
    return format_bytes(row.nbytes), value, *_cells(row.source)


def _place(source: Source) -> tuple[str, ...]:
    """Return a source in parts: the place and its code, then the library's line and the module."""
    location = source.location
    place = (line_text(location), location.code) if location else ()
    return (*place, *source_notes(source))


def _cells(source: Source) -> tuple[str, str]:
    """Return two cells: the place with the library's line and the module, and the code."""
    location = source.location
    place = (line_text(location),) if location else ()
    return " · ".join((*place, *source_notes(source))), location.code if location else ""

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
from jaxresid.render.report.overview.code_lines import kept_texts
from jaxresid.render.report.overview.findings import finding_lines, render_findings
from jaxresid.render.report.overview.lead import lead
from jaxresid.render.report.peak import (
    breakdown_parts,
    live_text,
    op_text,
    peak_remarks,
    top_live,
)
from jaxresid.render.report.program_arrays import arrays_text, render_arrays
from jaxresid.render.report.residuals import row_text
from jaxresid.render.report.rows import ResidualRow, View, rows, shapes_text
from jaxresid.render.style.grids import smaller_text
from jaxresid.render.style.words import line_text, percent, source_notes, verdict_text
from jaxresid.render.svg.icicle import icicle
from jaxresid.render.svg.timeline import timeline
from jaxresid.results import Checkpoint, CompiledBuffer, LiveValue, Report, Source

_WIDE = 140


def report_html(report: Report) -> str:
    """Return a report as self-contained HTML: the answer, the bytes over time, the rest folded.

    Everything that comes from the user's code is escaped.
    """
    has_curve = report.peak is not None and report.peak.curve
    picture = pictured(timeline(report)) if has_curve else ""
    report = safe_value(replace(report, lifetimes=()))
    findings = finding_lines(report)
    return view(
        answered(plain_lines(lead(report), _WIDE)),
        *map(paragraph, (f"warning: {warning}" for warning in report.warnings)),
        picture,
        *_peak(report),
        *_kept_or_passed(report),
        folded(_count(findings, "finding"), printed(Group(*render_findings(findings))))
        if findings
        else "",
        folded("work", *_cost(report)),
        folded("about the figures", *_about(report)),
    )


def _kept_or_passed(report: Report) -> Iterable[str]:
    if report.target.has_gradient:
        yield _kept(report)
        names = ("checkpoint", "verdict", LEGEND, "findings")
        checkpoints = table(names, map(_checkpoint, report.checkpoints))
        yield folded(_count(report.checkpoints, "checkpoint"), checkpoints)
    elif text := arrays_text(report):
        yield folded(text, printed(Group(*render_arrays(report))))


def _count(items: Sequence[object], one: str) -> str:
    return f"{len(items)} {one}" if len(items) == 1 else f"{len(items)} {one}s"


def _kept(report: Report) -> str:
    residual_rows = rows(report, View())
    totals = report.totals
    parts = [table(("bytes", "value", "where", "code"), map(_residual, residual_rows.shown))]
    if residual_rows.hidden:
        parts.append(paragraph(smaller_text([row.nbytes for row in residual_rows.hidden])))
    if totals.computed_nbytes + totals.host_nbytes:
        parts.insert(0, pictured(icicle(report)))
    return folded("".join(kept_texts(report)), *parts)


def _about(report: Report) -> Iterable[str]:
    renderables = about(report.target, report.jax, [report.place], report.mesh)
    yield from map(paragraph, plain_lines(renderables, _WIDE))
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
    place = (line_text(peak.location), peak.location.code) if peak.location else ()
    beside = (op_text(peak), *place, *source_notes(peak.source))
    yield folded(
        f"live at the peak: {', '.join(breakdown_parts(peak))}",
        paragraph(f"the peak is {' '.join(filter(None, beside))}"),
        table(names, (_live(live, peak.nbytes) for live in top.shown)),
        paragraph(smaller_text(top.hidden_nbytes, "value")) if top.hidden_nbytes else "",
    )


def _compiled(report: Report) -> Iterable[str]:
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


def _cells(source: Source) -> tuple[str, str]:
    location = source.location
    place = (line_text(location),) if location else ()
    return " · ".join((*place, *source_notes(source))), location.code if location else ""

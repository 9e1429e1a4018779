"""The report for a notebook: plain, escaped tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from jaxresid.model import Checkpoint, CompiledBuffer, LiveValue, Report, Source
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
from jaxresid.render.report.heading import place_remark
from jaxresid.render.report.peak import (
    breakdown_parts,
    curve_lines,
    hidden_text,
    live_text,
    op_text,
    peak_remarks,
    peak_text,
    room_text,
    top_live,
)
from jaxresid.render.report.residuals import row_text
from jaxresid.render.report.rows import ResidualRow, View, rows, shapes_text
from jaxresid.render.style.words import percent, place_text, source_notes, verdict_text
from jaxresid.safe_text import safe_value
from jaxresid.units import format_bytes

_CURVE_WIDTH = 100


def report_html(report: Report, view: View | None = None) -> str:
    """Return a report as self-contained HTML tables.

    Everything that comes from the user's code is escaped.
    """
    report = safe_value(report)
    parts = [*_heading(report), *_cost(report), *_peak(report)]
    if report.checkpoints:
        names = ("checkpoint", "verdict", LEGEND, "findings")
        parts.append(_table(names, map(_checkpoint, report.checkpoints)))
    found = rows(report, view or View())
    parts.append(_table(("bytes", "value", "where", "code"), map(_residual, found.shown)))
    if found.hidden:
        nbytes = format_bytes(found.hidden_nbytes)
        parts.append(_paragraph(f"{len(found.hidden)} smaller rows, {nbytes}"))
    parts += [_paragraph(f"warning: {warning}") for warning in report.warnings]
    return f"<div class='jaxresid'>{''.join(parts)}</div>"


def _heading(report: Report) -> Iterable[str]:
    totals = report.totals
    yield (
        f"<p><b>{escape(report.target.name)}</b> · jax {escape(report.jax.version)} · "
        f"<b>{format_bytes(totals.computed_nbytes)}</b> kept for the backward pass · "
        f"{format_bytes(totals.arguments_nbytes)} arguments already in memory · "
        f"{format_bytes(totals.host_nbytes)} host · "
        f"{format_bytes(totals.constants_nbytes)} constants</p>"
    )
    yield _paragraph(f"on {report.place.name} · {place_remark(report.place)}")
    if report.target.mode == "step":
        yield _paragraph("training step: its own gradients are reported")


def _cost(report: Report) -> Iterable[str]:
    yield _table(
        ("work", "phase", "detail"),
        ((row.figure, row.phase, row.detail) for row in cost_rows(report)),
    )
    yield from map(_paragraph, cost_remarks(report))


def _peak(report: Report) -> Iterable[str]:
    peak = report.peak
    if peak is None:
        yield from _compiled(report)
        return
    beside = [room_text(report).plain, op_text(peak), *_place(peak.source)]
    yield f"<p><b>{escape(peak_text(peak))}</b> {escape(' '.join(filter(None, beside)))}</p>"
    if peak.curve:
        yield "<pre>{}\n{}</pre>".format(*curve_lines(peak, _CURVE_WIDTH))
    yield _paragraph(" · ".join(breakdown_parts(peak)))
    top = top_live(peak)
    if top.shown:
        names = ("bytes", "share", "live at the peak", "where", "code")
        yield _table(names, (_live(live, peak.nbytes) for live in top.shown))
    if top.hidden:
        yield _paragraph(hidden_text(top))
    yield from map(_paragraph, peak_remarks(peak, report.place))


def _compiled(report: Report) -> Iterable[str]:
    """Yield what XLA says of a program whose peak is not estimated."""
    for compiled in report.compiled:
        yield f"<p><b>peak, by XLA</b> {escape(fits_text(compiled))}</p>"
        if compiled.error is not None:
            yield _paragraph(compiled.error)
        names = ("bytes", "buffer", "where", "code")
        yield _table(names, map(_buffer, compiled.buffers))


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
    place = (f"{place_text(location)} {location.function}", location.code) if location else ()
    return (*place, *source_notes(source))


def _cells(source: Source) -> tuple[str, str]:
    """Return two cells: the place with the library's line and the module, and the code."""
    location = source.location
    place = (f"{place_text(location)} {location.function}",) if location else ()
    return " · ".join((*place, *source_notes(source))), location.code if location else ""


def _paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def _table(names: Sequence[str], cells: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{name}</th>" for name in names)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in cells
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

"""The report for a notebook: a plain, escaped table."""

from __future__ import annotations

from html import escape

from jaxresid.model import Computed, Report
from jaxresid.render.rows import Row, View, rows, shapes_text
from jaxresid.render.text import row_text
from jaxresid.units import format_bytes


def report_html(report: Report, view: View | None = None) -> str:
    """A self-contained `<table>`; everything that comes from the user's code is escaped."""
    totals = report.totals
    found = rows(report, view or View())
    body = "".join(_row(row) for row in found.shown)
    hidden = (
        f"<p>{len(found.hidden)} smaller rows, {format_bytes(found.hidden_nbytes)}</p>"
        if found.hidden
        else ""
    )
    return (
        "<div class='jaxresid'>"
        f"<p><b>{escape(report.target.name)}</b> · jax {escape(report.jax.version)} · "
        f"<b>{format_bytes(totals.computed_nbytes)}</b> kept for the backward pass · "
        f"{format_bytes(totals.arguments_nbytes)} arguments alive anyway · "
        f"{format_bytes(totals.host_nbytes)} host · "
        f"{format_bytes(totals.constants_nbytes)} constants</p>"
        "<table><thead><tr><th>bytes</th><th>value</th><th>where</th><th>code</th></tr></thead>"
        f"<tbody>{body}</tbody></table>{hidden}</div>"
    )


def _row(row: Row) -> str:
    origin = row.first.origin
    location = origin.location if isinstance(origin, Computed) else None
    value = row_text(row) if row.title is None else f"{row.title} {shapes_text(row)}"
    where = f"{location.file}:{location.line} {location.function}" if location else ""
    cells = [format_bytes(row.nbytes), value, where, location.code if location else ""]
    return "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"

"""The `rdjson` format: reviewdog's Diagnostic Format, with columns from 1 in UTF-8 bytes."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from jaxresid.base.text.safe_text import json_text
from jaxresid.base.violations import Fix, Span, Violation
from jaxresid.render.lint.run import Run, message_lines, page, utf8_column

_SEVERITIES = {"error": "ERROR", "warning": "WARNING", "info": "INFO"}


def render(run: Run) -> str:
    """Return the findings in reviewdog's Diagnostic Format."""
    report = {
        "source": {"name": "jaxresid"},
        "severity": "WARNING",
        "diagnostics": [_diagnostic(run, v) for v in run.violations],
    }
    return json_text(report) + "\n"


def _diagnostic(run: Run, v: Violation) -> dict[str, Any]:
    url = page(v)
    diagnostic: dict[str, Any] = {
        "message": "\n".join(message_lines(v)),
        "location": _location(run, v.path, v.cell, v.span),
        "severity": _SEVERITIES[v.severity],
        "code": {"value": v.code} | ({"url": url} if url else {}),
    }
    suggestion = None if v.fix is None or v.cell is not None else _suggestion(run, v, v.fix)
    if suggestion is not None:
        diagnostic["suggestions"] = [suggestion]
    if v.related:
        diagnostic["related_locations"] = [
            {"message": r.message, "location": _location(run, r.path, r.cell, r.span)}
            for r in v.related
        ]
    return diagnostic


def _location(run: Run, path: str, cell: int | None, span: Span) -> dict[str, Any]:
    location: dict[str, Any] = {"path": run.relative(path)}
    if cell is None:  # a cell's rows are not the notebook file's
        location["range"] = _range(run, path, span)
    return location


def _range(run: Run, path: str, span: Span) -> dict[str, Any]:
    return {
        "start": _position(run, path, span.row, span.column),
        "end": _position(run, path, span.end_row, span.end_column),
    }


def _position(run: Run, path: str, row: int, column: int) -> dict[str, int]:
    return {"line": row, "column": utf8_column(run.line(path, None, row), column) + 1}


def _suggestion(run: Run, v: Violation, fix: Fix) -> dict[str, Any] | None:
    """Return a fix as one replacement; None where the source between its edits is not known.

    It is one because suggestions are taken one by one, and edits make sense only together.
    """
    edits = sorted(fix.edits, key=lambda edit: edit.span)
    if not edits:
        return None
    first, last = edits[0].span, edits[-1].span
    text = edits[0].text
    for before, edit in pairwise(edits):
        kept = _between(run.lines(v.path, None), before.span, edit.span)
        if kept is None:
            return None
        text += kept + edit.text
    whole = Span(first.row, first.column, last.end_row, last.end_column)
    return {"range": _range(run, v.path, whole), "text": text}


def _between(lines: tuple[str, ...], before: Span, after: Span) -> str | None:
    """Return the source from the end of one span to the start of the next.

    It is None where the source is not known.
    """
    start, stop = before.end_row, after.row
    if stop > len(lines) + 1:
        return None
    kept = [*lines, ""][start - 1 : stop]
    kept[-1] = kept[-1][: after.column]
    kept[0] = kept[0][before.end_column :]
    return "\n".join(kept)

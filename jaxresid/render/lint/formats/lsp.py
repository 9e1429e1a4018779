"""The `lsp` format: diagnostics of the Language Server Protocol.

Rows and columns count from 0, columns in UTF-16 units. `data` holds the fix, so that a code action
needs nothing but the diagnostic, and what a trace measured. Rows of notebooks are relative to the
cell that `data` names.
"""

from __future__ import annotations

from typing import Any

from jaxresid.render.lint.run import Run, page, plain, utf16_column, why_and_help
from jaxresid.render.lint.uris import file_uri
from jaxresid.text.safe_text import json_text
from jaxresid.violations import Related, Span, Violation

_SEVERITIES = {"error": 1, "warning": 2, "info": 3}
_UNNECESSARY = 1


def render(run: Run) -> str:
    """Return the diagnostics of each file as a JSON array.

    Clean files are listed too, so that editors remove what they showed for them.
    """
    found: dict[str, list[Violation]] = {linted.path: [] for linted in run.results}
    found |= run.by_file()
    files = [
        {"uri": file_uri(run, path), "diagnostics": [_diagnostic(run, v) for v in found[path]]}
        for path in sorted(found)
    ]
    return json_text(files) + "\n"


def _diagnostic(run: Run, v: Violation) -> dict[str, Any]:
    diagnostic: dict[str, Any] = {
        "range": _range(run, v.path, v.cell, v.span),
        "severity": _SEVERITIES[v.severity],
        "code": v.code,
        "source": "jaxresid",
        "message": "\n".join([v.message, *why_and_help(v)]),
    }
    url = page(v)
    if url is not None:
        diagnostic["codeDescription"] = {"href": url}
    if v.severity == "warning":  # what it marks saves no memory: editors fade it
        diagnostic["tags"] = [_UNNECESSARY]
    if v.related:
        diagnostic["relatedInformation"] = [_related(run, r) for r in v.related]
    data = _data(run, v)
    if data:
        diagnostic["data"] = data
    return diagnostic


def _data(run: Run, v: Violation) -> dict[str, Any]:
    data: dict[str, Any] = {}
    if v.cell is not None:
        data["cell"] = v.cell
    if v.measured:
        data["measured"] = plain(v.measured)
    if v.fix is not None:
        data |= {
            "title": v.fix.title,
            "edits": [
                {"range": _range(run, v.path, v.cell, edit.span), "newText": edit.text}
                for edit in v.fix.edits
            ],
            "applicability": v.fix.applicability,
            "is_preferred": v.fix.applicability == "safe",
        }
    return data


def _related(run: Run, related: Related) -> dict[str, Any]:
    place = _range(run, related.path, related.cell, related.span)
    return {
        "location": {"uri": file_uri(run, related.path), "range": place},
        "message": related.message,
    }


def _range(run: Run, path: str, cell: int | None, span: Span) -> dict[str, Any]:
    return {
        "start": _position(run, path, cell, span.row, span.column),
        "end": _position(run, path, cell, span.end_row, span.end_column),
    }


def _position(run: Run, path: str, cell: int | None, row: int, column: int) -> dict[str, int]:
    return {"line": row - 1, "character": utf16_column(run.line(path, cell, row), column)}

"""The `lsp` format: diagnostics of the Language Server Protocol.

Rows and columns count from 0, columns in UTF-16 units. `data` holds the fix, so that a code action
needs nothing but the diagnostic, and what a trace measured. Rows of notebooks are relative to the
cell that `data` names.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from jaxresid.base.text.safe_text import json_text
from jaxresid.base.violations import Edit, Related, Span, Violation
from jaxresid.render.lint.run import Run, page, plain, utf16_column, why_and_help
from jaxresid.render.lint.uris import file_uri

_SEVERITIES = {"error": 1, "warning": 2, "info": 3}
_UNNECESSARY = 1


def render(run: Run) -> str:
    """Return the diagnostics of each file as a JSON array.

    Clean files are listed too, so that editors remove what they showed for them.
    """
    found: dict[str, list[Violation]] = {linted.path: [] for linted in run.results}
    found |= run.by_file()
    place = _OfRun(run)
    files = [
        {"uri": file_uri(run, path), "diagnostics": [diagnostic(v, place) for v in found[path]]}
        for path in sorted(found)
    ]
    return json_text(files) + "\n"


class Place(Protocol):
    """What says where in a document something is."""

    def uri(self, path: str, cell: int | None) -> str:
        """Return the URI of a file, or of the document that is a cell of it."""

    def character(self, path: str, cell: int | None, row: int, column: int) -> int:
        """Return the units of the protocol before a column, which counts code points."""


class _OfRun:
    """Places in the files of a run, in UTF-16 units."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def uri(self, path: str, cell: int | None) -> str:
        return file_uri(self._run, path)

    def character(self, path: str, cell: int | None, row: int, column: int) -> int:
        return utf16_column(self._run.line(path, cell, row), column)


def diagnostic(v: Violation, place: Place) -> dict[str, Any]:
    """Return a violation as a diagnostic of the protocol.

    Args:
      v: the violation.
      place: says where its positions are.
    """
    diagnostic: dict[str, Any] = {
        "range": range_at(place, v.path, v.cell, v.span),
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
        diagnostic["relatedInformation"] = [_related(place, r) for r in v.related]
    data = _data(place, v)
    if data:
        diagnostic["data"] = data
    return diagnostic


def _data(place: Place, v: Violation) -> dict[str, Any]:
    data: dict[str, Any] = {}
    if v.cell is not None:
        data["cell"] = v.cell
    if v.measured:
        data["measured"] = plain(v.measured)
    if v.fix is not None:
        data |= {
            "title": v.fix.title,
            "edits": edits_at(place, v.path, v.cell, v.fix.edits),
            "applicability": v.fix.applicability,
            "is_preferred": v.fix.applicability == "safe",
        }
    return data


def edits_at(
    place: Place, path: str, cell: int | None, edits: Iterable[Edit]
) -> list[dict[str, Any]]:
    """Return edits of a file, or of one of its cells, as text edits of the protocol."""
    return [{"range": range_at(place, path, cell, e.span), "newText": e.text} for e in edits]


def _related(place: Place, related: Related) -> dict[str, Any]:
    where = range_at(place, related.path, related.cell, related.span)
    return {
        "location": {"uri": place.uri(related.path, related.cell), "range": where},
        "message": related.message,
    }


def range_at(place: Place, path: str, cell: int | None, span: Span) -> dict[str, Any]:
    """Return a span of a file, or of one of its cells, as a range of the protocol."""

    def position(row: int, column: int) -> dict[str, int]:
        return {"line": row - 1, "character": place.character(path, cell, row, column)}

    return {
        "start": position(span.row, span.column),
        "end": position(span.end_row, span.end_column),
    }

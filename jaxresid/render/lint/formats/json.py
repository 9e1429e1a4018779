"""The `json` format: a JSON array of findings, valid under `lint.schema.json`.

It has every field of `ruff check --output-format json` with the same meaning, so that what reads
that can read this; rows and columns count from 1, columns in code points, ends are exclusive.
"""

from __future__ import annotations

from typing import Any

from jaxresid.base.text.safe_text import json_text
from jaxresid.base.violations import Edit, Fix, Related, Violation
from jaxresid.render.lint.run import Run, page, plain


def render(run: Run) -> str:
    """Return the findings as a JSON array."""
    return json_text(entries(run)) + "\n"


def entries(run: Run) -> list[dict[str, Any]]:
    """Return one JSON object for each violation."""
    return [_entry(run, v) for v in run.violations]


def _entry(run: Run, v: Violation) -> dict[str, Any]:
    span = v.span
    return {
        "cell": v.cell,
        "code": v.code,
        "end_location": _location(span.end_row, span.end_column),
        "filename": run.absolute(v.path),
        "fix": None if v.fix is None else _fix(v.fix),
        "location": _location(span.row, span.column),
        "message": v.message,
        "name": v.name,
        "noqa_row": _noqa_row(v),
        "severity": v.severity,
        "url": page(v),
        "why": v.why,
        "help": v.help,
        "related": [_related(run, r) for r in v.related],
        "measured": plain(v.measured),
    }


def _location(row: int, column: int) -> dict[str, int]:
    return {"row": row, "column": column + 1}


def _noqa_row(v: Violation) -> int | None:
    if v.span.row in v.noqa_rows:
        return v.span.row
    return v.noqa_rows[0] if v.noqa_rows else None


def _fix(fix: Fix) -> dict[str, Any]:
    return {
        "applicability": fix.applicability,
        "edits": [_edit(edit) for edit in fix.edits],
        "message": fix.title,
    }


def _edit(edit: Edit) -> dict[str, Any]:
    return {
        "content": edit.text,
        "end_location": _location(edit.span.end_row, edit.span.end_column),
        "location": _location(edit.span.row, edit.span.column),
    }


def _related(run: Run, related: Related) -> dict[str, Any]:
    span = related.span
    return {
        "cell": related.cell,
        "end_location": _location(span.end_row, span.end_column),
        "filename": run.absolute(related.path),
        "location": _location(span.row, span.column),
        "message": related.message,
    }

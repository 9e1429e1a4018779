"""The `github` format: workflow commands, which GitHub Actions shows as annotations."""

from __future__ import annotations

from jaxresid.base.text.safe_text import visible
from jaxresid.base.violations import Violation
from jaxresid.render.lint.run import Run, label, position, why_and_help

_COMMANDS = {"error": "error", "warning": "warning", "info": "notice"}
_IN_DATA = {"%": "%25", "\r": "%0D", "\n": "%0A"}
_IN_PROPERTY = _IN_DATA | {":": "%3A", ",": "%2C"}


def render(run: Run) -> str:
    """Return one workflow command for each finding."""
    return "".join(f"{_command(run, v)}\n" for v in run.violations)


def _command(run: Run, v: Violation) -> str:
    path = run.relative(v.path)
    properties = {"title": f"jaxresid ({v.code})", "file": path, **_place(v)}
    listed = ",".join(f"{key}={_escape(p, _IN_PROPERTY)}" for key, p in properties.items())
    # Logs show the message alone, so it says where.
    first = f"{visible(position(path, v.cell, v.span))}: {label(v)} {v.message}"
    message = "\n".join([first, *(f"  {line}" for line in why_and_help(v))])
    return f"::{_COMMANDS[v.severity]} {listed}::{_escape(message, _IN_DATA)}"


def _place(v: Violation) -> dict[str, int]:
    span = v.span
    if v.cell is not None:
        return {"line": 1}
    if span.row != span.end_row:  # columns of two different lines make GitHub drop the annotation
        return {"line": span.row, "endLine": span.end_row}
    return {
        "line": span.row,
        "col": span.column + 1,
        "endLine": span.end_row,
        "endColumn": span.end_column + 1,
    }


def _escape(text: object, escapes: dict[str, str]) -> str:
    return "".join(escapes.get(char) or visible(char) for char in str(text))

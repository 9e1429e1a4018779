"""The `gitlab` format: GitLab's code quality report."""

from __future__ import annotations

import hashlib
from typing import Any

from jaxresid.base.text.safe_text import json_text
from jaxresid.base.violations import Violation
from jaxresid.render.lint.run import Run, fingerprints, last_row, message_lines

_SEVERITIES = {"error": "major", "warning": "minor", "info": "info"}


def render(run: Run) -> str:
    """Return the findings as a code quality report, a JSON array."""
    marks = fingerprints(run)
    issues = [_issue(run, v, *mark) for v, mark in zip(run.violations, marks, strict=True)]
    return json_text(issues) + "\n"


def _issue(run: Run, v: Violation, digest: str, number: int) -> dict[str, Any]:
    path = run.relative(v.path)
    begin, end = (v.span.row, last_row(v.span)) if v.cell is None else (1, 1)
    # Reports of many files are merged by fingerprint alone, so the path goes in.
    marked = f"{path}\0{digest}\0{number}".encode("utf-8", "surrogatepass")
    return {
        "description": f"{v.code}: {message_lines(v)[0]}",
        "check_name": v.code,
        "fingerprint": hashlib.sha256(marked).hexdigest()[:32],
        "severity": _SEVERITIES[v.severity],
        "location": {"path": path, "lines": {"begin": begin, "end": end}},
    }

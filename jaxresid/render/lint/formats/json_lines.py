"""The `json-lines` format: the objects of `json`, one per line."""

from __future__ import annotations

from jaxresid.base.text.safe_text import json_text
from jaxresid.render.lint.formats.json import entries
from jaxresid.render.lint.run import Run


def render(run: Run) -> str:
    """Return the findings as JSON objects, one per line."""
    return "".join(json_text(entry, indent=None) + "\n" for entry in entries(run))

"""The objects of `json`, one per line."""

from __future__ import annotations

import json

from jaxresid.render.lint.json import entries
from jaxresid.render.lint.run import Run


def render(run: Run) -> str:
    return "".join(
        json.dumps(entry, separators=(",", ":"), ensure_ascii=False) + "\n"
        for entry in entries(run)
    )

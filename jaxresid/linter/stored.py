"""What the cache keeps of a linted file, as JSON and back."""

from __future__ import annotations

import hashlib
import os
from dataclasses import asdict
from typing import Any

from jaxresid.violations import Edit, Fix, Linted, Related, Span, Violation


def as_json(linted: Linted) -> dict[str, Any]:
    """A file's result without its path: the cache may be read from another directory."""
    return {
        "violations": [asdict(v) for v in linted.violations],
        "lines": [[cell, list(lines)] for cell, lines in linted.lines.items()],
    }


def from_json(stored: dict[str, Any], path: str) -> Linted:
    """The result again, under the name that the file has in this run."""
    return Linted(
        path,
        tuple(_violation(v, path) for v in stored["violations"]),
        {cell: tuple(lines) for cell, lines in stored["lines"]},
    )


def _violation(stored: dict[str, Any], path: str) -> Violation:
    fix = stored["fix"]
    old = stored["path"]
    return Violation(
        **{
            **stored,
            "path": path,
            "span": Span(**stored["span"]),
            "noqa_rows": tuple(stored["noqa_rows"]),
            "fix": fix
            and Fix(
                fix["title"],
                tuple(Edit(Span(**e["span"]), e["text"]) for e in fix["edits"]),
                fix["applicability"],
            ),
            "related": tuple(
                Related(
                    r["message"],
                    path if r["path"] == old else r["path"],
                    Span(**r["span"]),
                    r["cell"],
                )
                for r in stored["related"]
            ),
        }
    )


def code_fingerprint() -> str:
    """A hash of the linter's own files: an edited rule, in development, must not be answered from
    the cache."""
    digest = hashlib.blake2b(digest_size=16)
    here = os.path.dirname(os.path.abspath(__file__))
    for directory in (here, os.path.join(here, "rules")):
        for entry in sorted(os.scandir(directory), key=lambda e: e.name):
            if entry.name.endswith(".py"):
                stat = entry.stat()
                digest.update(f"{entry.name} {stat.st_mtime_ns} {stat.st_size}\n".encode())
    return digest.hexdigest()

"""Convert what the cache keeps of a linted file to JSON and back."""

from __future__ import annotations

import hashlib
import os
from dataclasses import asdict, replace
from typing import Any

from jaxresid.decoding import decoded
from jaxresid.home import FOLDER
from jaxresid.violations import Linted, Violation


def as_json(linted: Linted) -> dict[str, Any]:
    """Return a file's result without its path, as the cache may be read from another directory."""
    return {
        "violations": [asdict(v) for v in linted.violations],
        "lines": [[cell, list(lines)] for cell, lines in linted.lines.items()],
    }


def from_json(stored: object, path: str) -> Linted:
    """Return the result that `as_json` wrote, under the path that the file has in this run.

    Raises:
      ValueError: `as_json` did not write it.
    """
    if not isinstance(stored, dict) or stored.keys() != {"violations", "lines"}:
        raise ValueError("these are not violations and lines")
    violations = decoded(tuple[Violation, ...], stored["violations"])
    lines = decoded(tuple[tuple[int | None, tuple[str, ...]], ...], stored["lines"])
    return Linted(path, tuple(_renamed(v, path) for v in violations), dict(lines))


def _renamed(violation: Violation, path: str) -> Violation:
    old = violation.path
    if old == path:
        return violation
    related = (replace(r, path=path if r.path == old else r.path) for r in violation.related)
    return replace(violation, path=path, related=tuple(related))


def code_fingerprint() -> str:
    """Return a hash of the linter's own files.

    With it, an edited rule, in development, is not answered from the cache.
    """
    digest = hashlib.blake2b(digest_size=16)
    for folder, _, names in sorted(os.walk(os.path.join(FOLDER, "linter"))):
        for name in sorted(names):
            if name.endswith(".py"):
                stat = os.stat(os.path.join(folder, name))
                digest.update(f"{name} {stat.st_mtime_ns} {stat.st_size}\n".encode())
    return digest.hexdigest()

"""Convert what the cache keeps of a linted file to JSON and back."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from jaxresid.decoding import decoded
from jaxresid.home import FOLDER
from jaxresid.violations import Linted, Violation


def as_json(linted: Linted, name: Callable[[str], str]) -> dict[str, Any]:
    """Return a file's result without its path, as the cache may be read from another directory.

    Args:
      linted: the result.
      name: returns the name of another file that a violation shows.
    """

    def portable(violation: Violation) -> Violation:
        own = violation.path
        related = (
            replace(r, path="" if r.path == own else name(r.path)) for r in violation.related
        )
        return replace(violation, path="", related=tuple(related))

    return {
        "violations": [asdict(portable(v)) for v in linted.violations],
        "lines": [[cell, list(lines)] for cell, lines in linted.lines.items()],
    }


def from_json(stored: object, path: str, show: Callable[[str], str]) -> Linted:
    """Return the result that `as_json` wrote, under the path that the file has in this run.

    Args:
      stored: what `as_json` wrote.
      path: the file as it is shown.
      show: returns how another file is shown, by its name.

    Raises:
      ValueError: `as_json` did not write it.
    """
    if not isinstance(stored, dict) or stored.keys() != {"violations", "lines"}:
        raise ValueError("these are not violations and lines")
    violations = decoded(tuple[Violation, ...], stored["violations"])
    lines = decoded(tuple[tuple[int | None, tuple[str, ...]], ...], stored["lines"])

    def here(violation: Violation) -> Violation:
        related = (replace(r, path=show(r.path) if r.path else path) for r in violation.related)
        return replace(violation, path=path, related=tuple(related))

    return Linted(path, tuple(map(here, violations)), dict(lines))


def code_fingerprint() -> str:
    """Return a hash of the linter's own files.

    With it, an edited rule, in development, is not answered from the cache. It is the same
    wherever, and whenever, they were installed.
    """
    digest = hashlib.blake2b(digest_size=16)
    for folder, _, names in sorted(os.walk(os.path.join(FOLDER, "linter"))):
        for name in sorted(names):
            if name.endswith(".py"):
                with open(os.path.join(folder, name), "rb") as file:
                    content = file.read()
                digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()

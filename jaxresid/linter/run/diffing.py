"""What an edit changes, as git and patch read it."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from jaxresid.shown import quoted


def unified_diff(before: bytes, after: bytes, old: str, new: str) -> Iterator[str]:
    """The lines of a unified diff, each with its end; `old` and `new` name the two files."""
    for line in difflib.unified_diff(_lines(before), _lines(after), quoted(old), quoted(new)):
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _lines(raw: bytes) -> list[str]:
    # Only what ends a line for git and patch: str.splitlines knows form feeds and more.
    *ended, last = raw.decode("utf-8", "replace").split("\n")
    return [f"{line}\n" for line in ended] + ([last] if last else [])

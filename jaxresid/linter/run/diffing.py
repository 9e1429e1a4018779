"""Show what an edit changes as a diff that git and patch can read."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from jaxresid.base.text.safe_text import quoted_path


def unified_diff(before: bytes, after: bytes, old: str, new: str) -> Iterator[str]:
    """Yield the lines of a unified diff, each with its end.

    Args:
      before: the old content.
      after: the new content.
      old: the name of the old file.
      new: the name of the new file.
    """
    for line in difflib.unified_diff(
        _lines(before), _lines(after), quoted_path(old), quoted_path(new)
    ):
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _lines(raw: bytes) -> list[str]:
    # Only what ends a line for git and patch: str.splitlines knows form feeds and more.
    *ended, last = raw.decode("utf-8", "replace").split("\n")
    return [f"{line}\n" for line in ended] + ([last] if last else [])

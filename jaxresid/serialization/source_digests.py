"""Digests of source files and of their lines, to tell later what of them has changed."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_LINE_END = re.compile(rb"\r\n|\n|\r")


@dataclass(frozen=True, slots=True)
class SourceDigest:
    """A source file as it was.

    Attributes:
      path: the absolute path.
      digest: the digest of its content; '' where it was written while it was being traced, so that
        what was traced is not known.
      lines: the digests of its lines; empty for files of installed packages.
    """

    path: str
    digest: str
    lines: tuple[str, ...] = ()


def digest_of(content: bytes) -> str:
    """Return the digest of a file's content."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def line_digests(content: bytes, known: dict[bytes, str] | None = None) -> tuple[str, ...]:
    """Return the digests of the lines of a file, without white space at their ends.

    Args:
      content: the content of the file.
      known: the digests of some lines, for files of which few lines are new; it gets the others.
    """
    found = {} if known is None else known
    lines = _LINE_END.split(content)
    for line in {*lines} - found.keys():
        found[line] = hashlib.blake2b(line.rstrip(), digest_size=6).hexdigest()
    return tuple([found[line] for line in lines])


def files_in(document: Any) -> Iterator[str]:
    """Yield the files that a JSON document points at, as it names them, more than once or not."""
    waiting = [document]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            if isinstance(value.get("file"), str):
                yield value["file"]
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value

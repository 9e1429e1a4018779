"""Read the lines of a file that holds a log."""

from __future__ import annotations

import codecs
import os
import stat
from collections.abc import Generator
from pathlib import Path

from jaxresid.base.errors import JaxresidError

# What is longer comes in pieces: a line of any length fits into memory.
_LONGEST_LINE = 1 << 20
_MARKS = {
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
    codecs.BOM_UTF8: "utf-8-sig",
}


def lines_of(path: Path) -> Generator[str, None, None]:
    """Yield the lines of a file, UTF-8 or, as PowerShell writes it, UTF-16.

    Raises:
      JaxresidError: The file cannot be read, or is a device.
    """
    try:
        if stat.S_ISCHR(os.stat(path).st_mode):
            raise JaxresidError(f"{path} is a device; give a log, such as train.log")
        with path.open("rb") as file:
            start = file.peek(3)[:3]
            encoding = next((name for mark, name in _MARKS.items() if start.startswith(mark)), "")
        with path.open(encoding=encoding or "utf-8", errors="replace") as text:
            while line := text.readline(_LONGEST_LINE):
                yield line
    except OSError as e:
        raise JaxresidError(f"cannot read {path}: {e.strerror or e}") from e

"""Open files of a cache that others can write to: only regular files, and never through a link."""

from __future__ import annotations

import os
import stat
from pathlib import Path

# Windows has neither; what is no regular file is looked at after it is open.
_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


def read(file: Path) -> bytes:
    """Return the content of a regular file.

    Raises:
      OSError: There is no such file, or it is a link, a pipe or the like.
    """
    return _read(opened(file, os.O_RDONLY))


def opened(file: Path, flags: int) -> int:
    """Return an open descriptor of a regular file.

    Args:
      file: the file to open.
      flags: flags as for `os.open`.

    Raises:
      OSError: There is no such file, or it is a link, a pipe or the like.
    """
    descriptor = os.open(file, flags | _NO_LINK, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{file} is not a regular file")
    return descriptor


def leads_out(directory: Path) -> bool:
    """Return whether a directory is a link to a place outside its parent directory."""
    if not directory.is_symlink():
        return False
    return not directory.resolve().is_relative_to(directory.parent.resolve())


def _read(descriptor: int) -> bytes:
    with open(descriptor, "rb") as file:
        return file.read()

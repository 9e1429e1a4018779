"""Files of a cache that others can write to: regular ones, and no link to another."""

from __future__ import annotations

import os
import stat
from pathlib import Path

# Windows has neither; what is no regular file is looked at after it is open.
_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


def read(file: Path) -> bytes:
    """The content of a regular file.

    Raises:
      OSError: there is none, or it is a link, a pipe or the like.
    """
    return _read(opened(file, os.O_RDONLY))


def opened(file: Path, flags: int) -> int:
    """The descriptor of a regular file.

    Raises:
      OSError: as `read`.
    """
    descriptor = os.open(file, flags | _NO_LINK, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{file} is no regular file")
    return descriptor


def leads_out(directory: Path) -> bool:
    """Whether a directory is a link to a place outside of the one that it is in."""
    if not directory.is_symlink():
        return False
    return not directory.resolve().is_relative_to(directory.parent.resolve())


def _read(descriptor: int) -> bytes:
    with open(descriptor, "rb") as file:
        return file.read()

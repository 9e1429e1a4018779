"""Read what this process has written to its standard error, where that is a file."""

from __future__ import annotations

import os
import stat

_STDERR = 2
_LIMIT_NBYTES = 16 << 20


def length() -> int:
    try:
        status = os.fstat(_STDERR)
    except OSError:
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


def since(start: int) -> str:
    """Return what was written since standard error held `start` bytes, at most 16 MiB of it.

    A compiler writes there past Python. Nothing is read from what is not a file, as a terminal is.
    """
    count = min(length() - start, _LIMIT_NBYTES)
    if count <= 0:
        return ""
    try:
        return os.pread(_STDERR, count, start).decode(errors="replace")
    except (AttributeError, OSError):  # Windows; or it cannot be read from here
        return ""

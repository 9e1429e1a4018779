"""Read regular files and nothing else: a pipe or a device may never end.

Files of a cache that others can write to are not reached through links either.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

# Windows has neither; what is no regular file is looked at after it is open.
_AT_ONCE = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_PIECE = 1 << 20
_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


class UnusableFileError(OSError):
    """The error of a file that is none to read, for what it is or for its size.

    `strerror` says why: `it is a named pipe, not a regular file`.
    """

    def __init__(self, reason: str, file: Path) -> None:
        super().__init__(None, reason, str(file))


def read(file: Path) -> bytes:
    """Return the content of a regular file.

    Raises:
      OSError: There is no such file, or it is a link, a pipe or the like.
    """
    with open(opened(file, os.O_RDONLY), "rb") as handle:
        return handle.read()


def read_limited(file: Path, limit_nbytes: int = 1 << 20) -> bytes:
    """Return the content of a regular file, which may be reached through links.

    Args:
      file: the file.
      limit_nbytes: what it may have; by default what a file that people write has at most.

    Raises:
      UnusableFileError: It is a pipe, a device or the like, or has more bytes.
      OSError: It cannot be read, or is a directory.
    """
    _refuse_others(os.stat(file), file)  # opening a device can have effects
    with open(_opened(file, os.O_RDONLY), "rb") as handle:
        pieces = []
        left = limit_nbytes
        # Files of /proc have no size, and some of them no end.
        while piece := handle.read(min(_PIECE, left + 1)):
            pieces.append(piece)
            left -= len(piece)
    if left < 0:
        raise UnusableFileError(f"it has more than {limit_nbytes >> 20} MiB", file)
    return b"".join(pieces)


def opened(file: Path, flags: int) -> int:
    """Return an open descriptor of a regular file.

    Args:
      file: the file to open.
      flags: flags as for `os.open`.

    Raises:
      OSError: There is no such file, or it is a link, a pipe or the like.
    """
    return _opened(file, flags | _NO_LINK)


def _opened(file: Path, flags: int) -> int:
    descriptor = os.open(file, flags | _AT_ONCE, 0o666)
    try:
        _refuse_others(os.fstat(descriptor), file)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _refuse_others(status: os.stat_result, file: Path) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(file))
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "something else")
        raise UnusableFileError(f"it is {kind}, not a regular file", file)


def is_regular(file: Path) -> bool:
    """Return whether a name is that of a regular file, and not of a link to one."""
    try:
        return stat.S_ISREG(os.lstat(file).st_mode)
    except OSError:
        return False


def leads_out(path: Path, folder: Path) -> bool:
    """Return whether a path is, by its links, outside a folder that it is named in."""
    return not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))

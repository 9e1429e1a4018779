"""Replace a file's content: all of it or nothing."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path


def replace_content(path: Path, old: bytes, new: bytes) -> bool:
    """Write `new` where `old` was, keeping the file's mode and any links to it.

    Args:
      old: the content that the file should still have.

    Returns:
      Whether it was written; it is not if the file has changed in the meantime.

    Raises:
      OSError: It cannot be written.
    """
    real = Path(os.path.realpath(path))
    handle, name = tempfile.mkstemp(dir=real.parent, prefix=f".{real.name}.")
    try:
        with open(handle, "wb") as file:
            file.write(new)
            file.flush()
            os.fsync(file.fileno())
        stat = real.stat()
        os.chmod(name, stat.st_mode)
        with contextlib.suppress(OSError, AttributeError):
            os.chown(name, stat.st_uid, stat.st_gid)
        if real.read_bytes() != old:
            return False
        os.replace(name, real)
        return True
    finally:
        with contextlib.suppress(OSError):
            os.unlink(name)

"""Read the files of a project that tell which jax it uses."""

from __future__ import annotations

from pathlib import Path

# The largest that are read; locks of big projects have a few MB.
_MOST = 32 << 20


def read(path: Path) -> str:
    """Return the text of a file; '' for what is no regular file, cannot be read, or is too big."""
    try:
        if not path.is_file() or path.stat().st_size > _MOST:
            return ""
        return path.read_bytes().decode("utf-8-sig", "replace")
    except (OSError, ValueError):  # ValueError: a name with a null character
        return ""

"""Which file a URI names."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit


def path_of(uri: str) -> Path | None:
    """Return the absolute path that a URI names; None where it names no file of this machine."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return None
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        return None
    path = unquote(parts.path, errors="surrogateescape")
    if not path.startswith("/") or "\0" in path:
        return None
    return Path(os.path.abspath(path))

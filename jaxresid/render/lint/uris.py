"""Paths as URIs."""

from __future__ import annotations

import os
import re
from pathlib import PurePath
from urllib.parse import quote

from jaxresid.render.lint.run import STDIN, Run


def file_uri(run: Run, path: str) -> str:
    """Return the URI of a file; standard input is an unsaved one of editors: `untitled:-`."""
    return f"untitled:{STDIN}" if path == STDIN else PurePath(_named(run.absolute(path))).as_uri()


def relative_uri(run: Run, path: str) -> str | None:
    """Return the URI of a file relative to `root`; None where the file is outside."""
    relative = run.relative(path)
    return (
        None if PurePath(relative).is_absolute() else quote(os.fsencode(_named(relative)), safe="/")
    )


def _named(path: str) -> str:
    """Return a path as a file can be called.

    Halves of surrogate pairs are kept only where they stand for bytes.
    """
    return re.sub("[\ud800-\udc7f\udd00-\udfff]", "\ufffd", path)

"""Paths as URIs."""

from __future__ import annotations

import os
import re
from pathlib import PurePath
from urllib.parse import quote

from jaxresid.render.lint.run import STDIN, Run


def file_uri(run: Run, path: str) -> str:
    """`file:///…`; standard input has no file, so it is what editors call an unsaved one."""
    return f"untitled:{STDIN}" if path == STDIN else PurePath(_named(run.absolute(path))).as_uri()


def relative_uri(run: Run, path: str) -> str | None:
    """The URI from `root`; None where the file is outside."""
    relative = run.relative(path)
    return (
        None if PurePath(relative).is_absolute() else quote(os.fsencode(_named(relative)), safe="/")
    )


def _named(path: str) -> str:
    """The path as a file can be called: of halves of pairs those alone that stand for bytes."""
    return re.sub("[\ud800-\udc7f\udd00-\udfff]", "\ufffd", path)

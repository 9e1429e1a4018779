"""`--watch`: run again whenever a file changes."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import click

from jaxresid.base.errors import JaxresidError
from jaxresid.cli.main import tell

_INTERVAL_S = 0.5
_CLEAR = "\x1b[2J\x1b[H"


def watch(run: Callable[[], int], files: Callable[[], Iterable[Path]]) -> int:
    """Call `run` now and after every change of the files, until Ctrl-C.

    It polls the files' stats: at a thousand files that is a few milliseconds each half second, and
    works on every file system.
    """
    while True:
        before = _state(files)
        if sys.stdout.isatty():
            sys.stdout.write(_CLEAR)
        try:
            run()
        except JaxresidError as e:
            tell(f"jaxresid: error: {e}")
        sys.stdout.flush()
        click.echo("Watching for changes; press Ctrl-C to stop.", err=True)
        while _state(files) == before:
            time.sleep(_INTERVAL_S)


def _state(files: Callable[[], Iterable[Path]]) -> dict[Path, tuple[int, int]]:
    try:
        found = tuple(files())
    except JaxresidError:
        return {}
    state = {}
    for path in found:
        try:
            stat = os.stat(path)
        except OSError:
            continue
        state[path] = stat.st_mtime_ns, stat.st_size
    return state

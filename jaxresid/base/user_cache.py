"""The folder of what is kept between runs, for all of a user's projects, and the files in it."""

from __future__ import annotations

import os
import re
import sys
import time
from contextlib import suppress
from pathlib import Path

_ABANDONED_S = 3600
_TAG = """Signature: 8a477f597d28d172789f06886806bc55
# This directory was made by jaxresid. See https://bford.info/cachedir/
"""


def folder() -> Path:
    """Return the folder: `$JAXRESID_CACHE_DIR`, else that of the platform for a user's caches."""
    given = os.environ.get("JAXRESID_CACHE_DIR")
    if given:
        return Path(given).expanduser()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA")
        return Path(base) / "jaxresid" if base else Path(".jaxresid_cache")
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):  # as the specification has it: a relative one is ignored
        return Path(base) / "jaxresid"
    try:
        home = Path.home()
    except RuntimeError:  # a user without a home, as in many containers
        return Path(".jaxresid_cache")
    return home / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "jaxresid"


def results_folder() -> Path:
    """Return the folder of the last results of named targets: `results` in that of all."""
    return folder() / "results"


def prepare(directory: Path) -> None:
    """Make a directory one that git and backups skip, unless it holds something else.

    Raises:
      OSError: It cannot be made.
    """
    directory.mkdir(parents=True, exist_ok=True)
    tag = directory / "CACHEDIR.TAG"
    if tag.exists() or any(directory.iterdir()):
        return
    for file, text in ((directory / ".gitignore", "*\n"), (tag, _TAG)):
        with suppress(FileExistsError), file.open("x", encoding="ascii") as new:
            new.write(text)


def write(file: Path, data: bytes) -> None:
    """Write a file of a directory that `prepare` made: all of it or nothing.

    Raises:
      OSError: It cannot be written.
    """
    # Not by tempfile, whose files are for nobody else to read: a team may share a directory.
    temporary = file.with_name(f"{file.stem}.{os.getpid()}.{time.time_ns()}.tmp")
    try:
        with open(temporary, "xb") as opened:  # as a link it would be followed
            opened.write(data)
        os.replace(temporary, file)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def drop_oldest(directory: Path, limit_nbytes: int) -> None:
    """Remove the files that were not used for the longest time, until the others have room.

    Only `DIGEST.json` and what writing such a file left behind are removed.

    Args:
      directory: where they are.
      limit_nbytes: the bytes that all of them may take together.

    Raises:
      OSError: The directory cannot be read.
    """
    entries = []
    abandoned = time.time() - _ABANDONED_S
    with os.scandir(directory) as found:
        for entry in found:
            with suppress(FileNotFoundError):  # another process drops it, too
                stat = entry.stat()
                if is_entry(entry.name):
                    entries.append((stat.st_mtime_ns, stat.st_size, entry.path))
                elif _TEMPORARY.fullmatch(entry.name) and stat.st_mtime < abandoned:
                    os.unlink(entry.path)
    excess = sum(nbytes for _, nbytes, _ in entries) - limit_nbytes
    for _, nbytes, path in sorted(entries):
        if excess <= 0:
            return
        with suppress(FileNotFoundError):
            os.unlink(path)
        excess -= nbytes


def is_entry(name: str) -> bool:
    """Return whether a file of a cache has the name of one that was kept: `DIGEST.json`."""
    return _ENTRY.fullmatch(name) is not None


_ENTRY = re.compile(r"[0-9a-f]{64}\.json")
_TEMPORARY = re.compile(r"[0-9a-f]{64}\..*\.tmp")

"""Read the requirements on jax of files for `pip install -r`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from jaxresid.settings.requirements.files import read
from jaxresid.settings.requirements.versions import on_jax

_INCLUDE = re.compile(r"(?:-r|-c|--requirement|--constraint)\s*+=?\s*+(\S+)")
_HASH = re.compile(r"\s--hash[=\s]\S+")
# Files that include one another without an end stop here.
_DEPTH = 5


def pip_requirements(path: Path) -> list[str]:
    """Return what a requirements.txt requires of jax, with the files that it includes."""
    return list(_requirements(path, _DEPTH))


def _requirements(path: Path, depth: int) -> Iterator[str]:
    for written in re.sub(r"\\\r?\n", " ", read(path)).splitlines():
        line = _HASH.sub("", re.sub(r"(?:^|\s)#.*", "", written)).strip()
        included = _INCLUDE.fullmatch(line)
        if included is None:
            yield from on_jax([line])
        elif depth and "://" not in included[1]:
            yield from _requirements(path.parent / included[1], depth - 1)

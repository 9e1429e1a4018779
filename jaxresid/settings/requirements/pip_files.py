"""Read the requirements on jax of files for `pip install -r`."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from jaxresid.settings.requirements.files import read
from jaxresid.settings.requirements.versions import on_jax

_INCLUDE = re.compile(r"(?:-r|-c|--requirement|--constraint)\s*+=?\s*+(\S+)")
_HASH = re.compile(r"\s--hash[=\s]\S+")


@dataclass(frozen=True, slots=True)
class PipFile:
    """What one file requires of jax, and the files that it includes."""

    requirements: tuple[str, ...]
    included: tuple[Path, ...]


def pip_requirements(path: Path, known: dict[str, PipFile] | None = None) -> list[str]:
    """Return what a requirements.txt requires of jax, with the files that it includes.

    Args:
      path: the file.
      known: files that were read before, by their real paths; it is added to.

    Raises:
      ConfigFileError: One of them is a pipe, a device or the like, or too big.
    """
    known = {} if known is None else known
    found: list[str] = []
    included = {os.path.realpath(path): path}
    todo = list(included)
    for real in todo:
        if real not in known:
            known[real] = _read(included[real])
        found += known[real].requirements
        for each in known[real].included:
            name = os.path.realpath(each)
            if name not in included:
                included[name] = each
                todo.append(name)
    return found


def _read(path: Path) -> PipFile:
    requirements: list[str] = []
    included: list[Path] = []
    for written in re.sub(r"\\\r?\n", " ", read(path)).splitlines():
        line = _HASH.sub("", re.sub(r"(?:^|\s)#.*", "", written)).strip()
        inclusion = _INCLUDE.fullmatch(line)
        if inclusion is None:
            requirements += on_jax([line])
        elif "://" not in inclusion[1]:
            included.append(path.parent / inclusion[1])
    return PipFile(tuple(requirements), tuple(included))

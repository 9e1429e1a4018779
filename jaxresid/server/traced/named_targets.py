"""The named targets of projects, and where in their code they are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from jaxresid.settings.named_target import NamedTarget
from jaxresid.settings.project import project
from jaxresid.settings.pyproject import find
from jaxresid.settings.toml_values import ConfigError

_NAME = re.compile(r"[\w.]+")
# Of a framework's models: `nnx:train.py:Decoder(512)`.
_FRAMEWORK = re.compile(r"(?<![a-z])[a-z]++:(?=[^:]++:)")


class NamedTargets:
    """The targets that configuration files name, read again where they changed."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[int, tuple[NamedTarget, ...] | None]] = {}

    def of(self, folder: Path) -> tuple[NamedTarget, ...] | None:
        """Return the targets of a folder's configuration file; None where it is not understood."""
        file = folder / "pyproject.toml"
        try:
            changed = file.stat().st_mtime_ns
        except OSError:
            return ()
        known = self._known.get(folder)
        if known is None or known[0] != changed:
            try:
                targets: tuple[NamedTarget, ...] | None = project(folder, config_file=file).targets
            except ConfigError:
                targets = None
            known = self._known[folder] = changed, targets
        return known[1]


def project_folders(paths: Iterable[Path]) -> list[Path]:
    """Return the folders of the configuration files that hold for some files or folders."""
    folders: dict[Path, None] = {}
    for path in paths:
        try:
            file = find(path).file
        except ConfigError:
            continue
        if file is not None:
            folders[file.parent] = None
    return list(folders)


def name_in(target: NamedTarget, folder: Path, path: Path) -> str | None:
    """Return the name that a target of a project's folder has in a file, None if not there."""
    place, _, attribute = _FRAMEWORK.sub("", target.target, count=1).rpartition(":")
    named = _NAME.match(attribute)
    if named is None or path not in _files(place, folder):
        return None
    return named.group().rpartition(".")[2]


def _files(place: str, folder: Path) -> Sequence[Path]:
    if place.endswith(".py"):
        return (folder / place,)
    parts = place.split(".")
    return [
        file
        for root in (folder, folder / "src")
        for file in (
            root.joinpath(*parts[:-1], f"{parts[-1]}.py"),
            root.joinpath(*parts, "__init__.py"),
        )
    ]

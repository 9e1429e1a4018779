"""Which project of the workspace a command is about, and which Python runs it."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxresid.base.errors import InputsError
from jaxresid.base.text.nearest import did_you_mean
from jaxresid.revisions.interpreters import interpreter
from jaxresid.server.traced.named_targets import NamedTargets, project_folders


@dataclass(frozen=True, slots=True)
class ProjectTarget:
    """A named target of a project of the workspace.

    Attributes:
      name: its name.
      folder: the folder of the configuration file that names it.
      root: the folder of the workspace that this is in.
    """

    name: str
    folder: Path
    root: Path


def project_target(
    name: str,
    folder: Path | None,
    folders: Sequence[Path],
    near: Iterable[Path],
    targets: NamedTargets,
) -> ProjectTarget:
    """Return the target of a name.

    Args:
      name: the name.
      folder: the folder of its project; None: the only one of the workspace that names it.
      folders: the folders of the workspace.
      near: files whose projects count as well.
      targets: the targets of projects.

    Raises:
      InputsError: It is not there, more than once, or not in the workspace.
    """
    known = [folder] if folder is not None else project_folders((*folders, *near))
    named = _named(known, folders, targets)
    if folder is not None and not named:
        raise InputsError(f"{folder} is outside of the workspace: nothing is run there")
    found = [path for path, names in named.items() if name in names]
    if not found:
        names = sorted({each for names in named.values() for each in names})
        if not names:
            raise InputsError(
                f"no target {name!r}: no pyproject.toml of the workspace names targets; write"
                " [tool.jaxresid.targets.NAME]"
            )
        guess = did_you_mean(name, names)
        raise InputsError(f"no target {name!r}{guess} (known: {', '.join(names)})")
    if len(found) > 1:
        where = ", ".join(map(str, found))
        raise InputsError(f"the target {name!r} is in several projects: name the folder: {where}")
    target = next(t for t in targets.of(found[0]) or () if t.name == name)
    place = target.target.rpartition(":")[0].rpartition(":")[2]
    if place.endswith(".py") and root_of(found[0] / place, folders) is None:
        raise InputsError(f"{place} of the target {name!r} is outside of the workspace")
    root = root_of(found[0], folders)
    assert root is not None
    return ProjectTarget(name, found[0], root)


def all_targets(
    folders: Sequence[Path], near: Iterable[Path], targets: NamedTargets
) -> list[tuple[str, Path]]:
    """Return the names of all targets of the workspace, each with the folder of its project.

    Args:
      folders: the folders of the workspace.
      near: files whose projects count as well.
      targets: the targets of projects.
    """
    named = _named(project_folders((*folders, *near)), folders, targets)
    return [(name, path) for path, names in named.items() for name in names]


def _named(
    known: Iterable[Path], folders: Sequence[Path], targets: NamedTargets
) -> dict[Path, list[str]]:
    """Return the names of the targets of those projects that are in the workspace."""
    return {
        path: [target.name for target in targets.of(path) or ()]
        for path in known
        if root_of(path, folders) is not None
    }


def root_of(path: Path, folders: Sequence[Path]) -> Path | None:
    """Return the folder of the workspace that a path is in, links followed; None for none."""
    real = Path(os.path.realpath(path))
    return next((f for f in folders if real.is_relative_to(os.path.realpath(f))), None)


def python_of(target: ProjectTarget, setting: str | None) -> str:
    """Return the Python that traces a target.

    It is that of the setting, else that of the nearest `.venv` of the project, else the server's
    own where that has JAX.

    Args:
      target: the target.
      setting: what the user wrote for it, relative to the folder of the workspace; None: nothing.

    Raises:
      InputsError: There is none, or it is too old.
    """
    if setting is not None:
        text = os.path.expanduser(setting)
        is_path = os.path.dirname(text) != ""
        return interpreter(str(target.root / text) if is_path else text, "the interpreter")
    for folder in (target.folder, *target.folder.parents):
        if (folder / ".venv").is_dir():
            return interpreter(str(folder / ".venv"), "the interpreter")
        if folder == target.root:
            break
    if importlib.util.find_spec("jax") is not None:
        return sys.executable
    raise InputsError(
        f"no Python with JAX for the target {target.name!r}: set the option `interpreter` of the"
        f" server, or make an environment {target.root / '.venv'}"
    )

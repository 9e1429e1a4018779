"""Find the newest JAX that a project uses, from its uv.lock and its pyproject.toml."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from jaxresid.base import regular_files
from jaxresid.settings.requirements.versions import (
    Groups,
    Version,
    admits,
    groups_of,
    newest_admitted,
)
from jaxresid.settings.toml_values import ConfigFileError, table_in

# What the top of a repository is known by.
_TOPS = frozenset({".git", ".hg", ".jj", ".svn"})
# Locks of big projects have a few MB.
_MOST_NBYTES = 32 << 20
_PACKAGE = re.compile(r"^\[\[package\]\]\s*$", re.MULTILINE)
_IS_JAX = re.compile(r'^name\s*=\s*"jax"\s*$', re.MULTILINE)
_VERSION = re.compile(r'^version\s*=\s*"v?(\d++)\.(\d++)[^"]*+"\s*$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class JaxInUse:
    """The newest JAX that a project uses.

    Attributes:
      version: its major and minor number; None where nothing bounds it from above.
      file: the file that says so; None where none does.
    """

    version: Version | None = None
    file: Path | None = None


@dataclass(frozen=True, slots=True)
class Directory:
    """What the files of one directory say of jax.

    Attributes:
      locked: the newest version that its uv.lock pins; None where it pins none.
      declared: the requirements of its pyproject.toml.
      is_top: whether it is the top of a repository: what lies above is not the project's.
    """

    locked: Version | None = None
    declared: Groups = ()
    is_top: bool = False


def jax_in_use(start: Path, known: dict[Path, Directory] | None = None) -> JaxInUse:
    """Return the newest JAX that the project around a file or directory uses.

    Files are searched there and upwards, to the top of the repository. First comes uv.lock, then
    what pyproject.toml admits. A locked version that it does not admit is out of date, and does
    not count.

    Args:
      start: the file or directory.
      known: what was read of directories before, which is read once; it is added to.

    Raises:
      ConfigFileError: One of these files is a pipe, a device or the like, or too big.
    """
    known = {} if known is None else known
    start = Path(os.path.abspath(start))
    directories: list[Path] = []
    for path in (start, *start.parents):
        if path not in known:
            known[path] = _directory(path)
        directories.append(path)
        if known[path].is_top:
            break
    declaring = next((path for path in directories if known[path].declared), None)
    groups = known[declaring].declared if declaring is not None else ()
    for path in directories:
        version = known[path].locked
        if version is not None:
            if admits(groups, version):
                return JaxInUse(version, path / "uv.lock")
            break
    version = newest_admitted(groups)
    if declaring is None or version is None:
        return JaxInUse()
    return JaxInUse(version, declaring / "pyproject.toml")


def _directory(path: Path) -> Directory:
    try:
        names = frozenset(os.listdir(path))
    except OSError:  # a file, or what may not be read
        return Directory()
    locked = _locked(_read(path / "uv.lock")) if "uv.lock" in names else None
    declared = _declared(_read(path / "pyproject.toml")) if "pyproject.toml" in names else ()
    return Directory(locked, declared, bool(names & _TOPS))


def _read(path: Path) -> str:
    """Return the text of a file; '' for one that may not be read."""
    try:
        data = regular_files.read_limited(path, _MOST_NBYTES)
    except regular_files.UnusableFileError as e:
        reason = f"cannot be read: {e.strerror} (`target-jax` of [tool.jaxresid] makes it unneeded)"
        raise ConfigFileError(path, reason) from None
    except OSError:
        return ""
    return data.decode("utf-8-sig", "replace")


def _locked(text: str) -> Version | None:
    """Return the newest version of jax that a uv.lock pins; None where it pins none.

    Locks have some MB, for which a parser of TOML takes a second.
    """
    if not _IS_JAX.search(text):
        return None
    versions: list[Version] = []
    for package in _PACKAGE.split(text)[1:]:
        own = re.split(r"^\[", package, maxsplit=1, flags=re.MULTILINE)[0]
        if _IS_JAX.search(own) and (version := _VERSION.search(own)):
            versions.append((int(version[1]), int(version[2])))
    return max(versions, default=None)


def _declared(text: str) -> Groups:
    if "jax" not in text.lower():
        return ()
    import tomllib

    try:
        return jax_requirements(tomllib.loads(text))
    except (tomllib.TOMLDecodeError, RecursionError):  # for the file's own tool to say
        return ()


def jax_requirements(document: Mapping[str, object]) -> Groups:
    """Return the requirements on jax of a pyproject.toml, in groups that hold at the same time.

    `project.dependencies` counts; what does not name jax there counts by its extras, and without
    those by its dependency groups, which are not part of what the project asks of its users.
    """
    project = table_in(document, "project")
    extras = table_in(project, "optional-dependencies").values()
    return groups_of(project.get("dependencies"), extras) or groups_of(
        None, table_in(document, "dependency-groups").values()
    )

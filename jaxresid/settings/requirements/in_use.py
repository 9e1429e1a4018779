"""Find the newest JAX that a project uses, from the files that say so."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from jaxresid.settings.requirements.conda import environment_requirements
from jaxresid.settings.requirements.files import read
from jaxresid.settings.requirements.locks import LOCKS, locked_version
from jaxresid.settings.requirements.pip_files import PipFile, pip_requirements
from jaxresid.settings.requirements.pyproject import jax_requirements, pixi_requirements
from jaxresid.settings.requirements.versions import Groups, Version, admits, newest_admitted

# What the top of a repository is known by.
_TOPS = frozenset({".git", ".hg", ".jj", ".svn"})
_ENVIRONMENTS = ("environment.yml", "environment.yaml")


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
      locked: what its locks pin; None where they pin nothing.
      environment: what its files for an environment bound; None where they bound nothing.
      declared: the requirements of its project, and the file that has them; None without any.
      is_top: whether it is the top of a repository: what lies above is not the project's.
    """

    locked: JaxInUse | None = None
    environment: JaxInUse | None = None
    declared: tuple[Groups, Path] | None = None
    is_top: bool = False


def jax_in_use(start: Path, known: dict[Path, Directory] | None = None) -> JaxInUse:
    """Return the newest JAX that the project around a file or directory uses.

    Files are searched there and upwards, to the top of the repository. First come locks, then the
    files that environments are made of (requirements.txt, environment.yml), as far as they bound
    the version, and at last what the project asks of its users (pyproject.toml, setup.cfg,
    setup.py). A version that the last do not admit is out of date, and does not count.

    Args:
      start: the file or directory.
      known: what was read of directories before, which is read once; it is added to.

    Raises:
      ConfigFileError: One of these files is a pipe, a device or the like, or too big.
    """
    known = {} if known is None else known
    start = Path(os.path.abspath(start))
    directories: list[Directory] = []
    for path in (start, *start.parents):
        if path not in known:
            known[path] = _directory(path)
        directories.append(known[path])
        if known[path].is_top:
            break
    groups, file = next((d.declared for d in directories if d.declared), ((), None))
    locked = next((d.locked for d in directories if d.locked), None)
    environment = next((d.environment for d in directories if d.environment), None)
    for found in (locked, environment):
        if found is not None and found.version is not None and admits(groups, found.version):
            return found
    version = newest_admitted(groups)
    return JaxInUse(version, file if version else None)


def _directory(path: Path) -> Directory:
    try:
        names = frozenset(os.listdir(path))
    except OSError:  # a file, or what may not be read
        return Directory()
    return Directory(
        _locked(path, names), _environment(path, names), _declared(path, names), bool(names & _TOPS)
    )


def _locked(directory: Path, names: frozenset[str]) -> JaxInUse | None:
    locks = (name for name in sorted(names) if name in LOCKS or _is_pylock(name))
    found = [
        JaxInUse(version, directory / name)
        for name in locks
        if (version := locked_version(name, read(directory / name)))
    ]
    return max(found, key=lambda each: each.version or (0, 0), default=None)


def _is_pylock(name: str) -> bool:
    return name.startswith("pylock.") and name.endswith(".toml")


def _environment(directory: Path, names: frozenset[str]) -> JaxInUse | None:
    """Return what the files for an environment in a directory bound, the usual names first."""
    known: dict[str, PipFile] = {}
    usual = [(name, _lines(directory / name, known)) for name in _usual(names)]
    return _bounded(directory, usual) or _bounded(directory, _further(directory, names, known))


def _usual(names: frozenset[str]) -> Iterator[str]:
    yield from (name for name in ("requirements.txt", *_ENVIRONMENTS) if name in names)


def _further(
    directory: Path, names: frozenset[str], known: dict[str, PipFile]
) -> list[tuple[str, list[str]]]:
    others = {n for n in names if n.startswith("requirements") and n.endswith(".txt")}
    others |= {n for n in names if n.startswith("environment") and n.endswith((".yml", ".yaml"))}
    if "requirements" in names:
        try:
            inside = os.listdir(directory / "requirements")
        except OSError:
            inside = []
        others |= {f"requirements/{n}" for n in inside if n.endswith(".txt")}
    files = sorted(others.difference(_usual(names)))
    return [(name, _lines(directory / name, known)) for name in files]


def _lines(path: Path, known: dict[str, PipFile]) -> list[str]:
    if path.suffix == ".txt":
        return pip_requirements(path, known)
    return environment_requirements(read(path))


def _bounded(directory: Path, files: Iterable[tuple[str, list[str]]]) -> JaxInUse | None:
    """Return the newest version that some files bound; None where one of them bounds nothing."""
    found: list[tuple[Version, str]] = []
    for name, lines in files:
        if not lines:
            continue
        plain = [line.partition(";")[0] for line in lines]
        # Lines with markers are for other machines: the newest of them counts.
        together = len(plain) == 1 or not any(";" in line for line in lines)
        version = newest_admitted([plain] if together else [[line] for line in plain])
        if version is None:
            return None
        found.append((version, name))
    if not found:
        return None
    version, name = max(found)
    return JaxInUse(version, directory / name)


def _declared(directory: Path, names: frozenset[str]) -> tuple[Groups, Path] | None:
    for name, requirements in _DECLARING.items():
        text = read(directory / name) if name in names else ""
        if "jax" in text.lower() and (groups := requirements(text)):
            return groups, directory / name
    return None


def _pyproject(text: str) -> Groups:
    return jax_requirements(_of_toml(text))


def _pixi(text: str) -> Groups:
    return pixi_requirements(_of_toml(text))


def _of_toml(text: str) -> dict[str, object]:
    import tomllib

    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):  # for the file's own tool to say
        return {}


def _setup_cfg(text: str) -> Groups:
    from jaxresid.settings.requirements.setup_files import setup_cfg_requirements

    return setup_cfg_requirements(text)


def _setup_py(text: str) -> Groups:
    from jaxresid.settings.requirements.setup_files import setup_py_requirements

    return setup_py_requirements(text)


_DECLARING: dict[str, Callable[[str], Groups]] = {
    "pyproject.toml": _pyproject,
    "pixi.toml": _pixi,
    "setup.cfg": _setup_cfg,
    "setup.py": _setup_py,
}

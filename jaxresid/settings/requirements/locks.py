"""Read the version of jax from the lock files of uv, Poetry, PDM, pip, Pipenv and pixi."""

from __future__ import annotations

import re

from jaxresid.settings.requirements.versions import Version

# The names of lock files. PEP 751 allows more of pip's: pylock.NAME.toml.
LOCKS = frozenset(
    {"uv.lock", "poetry.lock", "pdm.lock", "pylock.toml", "Pipfile.lock", "pixi.lock"}
)

_PACKAGE = re.compile(r"^\[\[packages?\]\]\s*$", re.MULTILINE)
_IS_JAX = re.compile(r"""^name\s*=\s*["']jax["']\s*$""", re.MULTILINE | re.IGNORECASE)
_VERSION = re.compile(r"""^version\s*=\s*["']([^"']+)["']\s*$""", re.MULTILINE)
# pixi: the archive of a conda package, and the name of one from PyPI.
_ARCHIVE = re.compile(r"/jax-(\d[\w.]*?)(?:-[^/\s]*)?\.(?:conda|tar|whl)\b")
_NAMED = re.compile(r"^[ \t]++name: jax[ \t\r]*+\n[ \t]++version: ['\"]?([\w.]+)", re.MULTILINE)


def locked_version(name: str, text: str) -> Version | None:
    """Return the newest version of jax that a lock file pins, None where it pins none.

    Args:
      name: the name of the file.
      text: its text.
    """
    if name == "Pipfile.lock":
        found = _pipenv(text)
    elif name == "pixi.lock":
        found = _ARCHIVE.findall(text) + _NAMED.findall(text)
    else:
        found = _toml_packages(text)
    return max((version for each in found if (version := _minor(each))), default=None)


def _toml_packages(text: str) -> list[str]:
    """Return the versions of jax in a lock that has a table for each package.

    Locks have some MB, for which a parser of TOML takes a second.
    """
    if not _IS_JAX.search(text):
        return []
    versions: list[str] = []
    for package in _PACKAGE.split(text)[1:]:
        own = re.split(r"^\[", package, maxsplit=1, flags=re.MULTILINE)[0]
        if _IS_JAX.search(own) and (version := _VERSION.search(own)):
            versions.append(version[1])
    return versions


def _pipenv(text: str) -> list[str]:
    import json

    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return []
    sections = document.values() if isinstance(document, dict) else ()
    packages = [section.get("jax") for section in sections if isinstance(section, dict)]
    versions = [package.get("version") for package in packages if isinstance(package, dict)]
    return [version.lstrip("=") for version in versions if isinstance(version, str)]


def _minor(version: str) -> Version | None:
    match = re.match(r"v?(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else None

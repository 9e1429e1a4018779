"""Look at an interpreter of Python before it is asked to trace."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from jaxresid.base.errors import InputsError

_LEAST = (3, 11)
_TIMEOUT_S = 60
# What this package needs to make a report as JSON, besides JAX. None of it is compiled.
_LENT = ("click", "packaging", "rich", "pygments", "markdown_it", "mdurl")
_ASK = "import sys; print('%d %d' % sys.version_info[:2])"


def interpreter(text: str, named: str = "--python") -> str:
    """Return the path of an interpreter: of a file, of an environment's folder or of a command.

    Args:
      text: what the user wrote.
      named: what the user wrote it for.

    Raises:
      InputsError: it is none, or one that is too old.
    """
    found = _path(text)
    if found is None:
        raise InputsError(
            f"{named} {text}: no such interpreter; write the path of one, .venv/bin/python"
        )
    try:
        done = subprocess.run(
            [found, "-I", "-c", _ASK],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            check=True,
        )
        version = tuple(map(int, done.stdout.split()))
    except (OSError, subprocess.SubprocessError, ValueError) as e:
        raise InputsError(f"{named} {text} does not run as Python") from e
    if version < _LEAST:
        least = ".".join(map(str, _LEAST))
        raise InputsError(
            f"{named} {text} is Python {'.'.join(map(str, version))}; jaxresid needs {least}"
        )
    return found


def lent_packages() -> Mapping[str, str]:
    """Return the folders of packages that another interpreter may lack, by name."""
    found: dict[str, str] = {}
    for name in _LENT:
        spec = importlib.util.find_spec(name)
        for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
            found.setdefault(name, os.path.dirname(folder))
    return found


def _path(text: str) -> str | None:
    """Return the interpreter that a text stands for, links not followed: they tell environments."""
    for candidate in (Path(text), Path(text, "bin", "python"), Path(text, "Scripts", "python.exe")):
        if candidate.is_file():
            return os.path.abspath(candidate)
    return shutil.which(text) if os.sep not in text else None

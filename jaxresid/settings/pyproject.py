"""Find the pyproject.toml that configures jaxresid, and read it as TOML."""

from __future__ import annotations

import os
import re
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from jaxresid.base import regular_files
from jaxresid.base.text.wide_encodings import wide_encoding
from jaxresid.settings.toml_values import ConfigFileError, table_in


class ConfigText(NamedTuple):
    """The configuration file with its text."""

    file: Path | None = None
    text: str = ""


def find(start: Path, config_file: Path | None = None) -> ConfigText:
    """Return the configuration file: the given one, else the nearest that has the table.

    Raises:
      ConfigError: A file cannot be read or is not TOML.
    """
    if config_file is not None:
        try:
            text = _decode(regular_files.read_limited(config_file), config_file)
        except OSError as error:
            raise _unreadable(config_file, error) from None
        toml_tables(text, config_file)
        return ConfigText(config_file, text)
    start = Path(os.path.abspath(start))
    for directory in (start, *start.parents):
        path = directory / "pyproject.toml"
        try:
            data = regular_files.read_limited(path)
        except regular_files.UnusableFileError as error:
            raise _unreadable(path, error) from None
        except OSError:
            continue
        if b"jax" not in data.replace(b"\0", b""):  # neither the table nor a requirement
            continue
        content = _decode(data, path)
        if "jaxresid" in table_in(toml_tables(content, path), "tool"):
            return ConfigText(path, content)
    return ConfigText()


def _unreadable(path: Path, error: OSError) -> ConfigFileError:
    return ConfigFileError(path, f"cannot be read: {error.strerror or error}")


def _decode(data: bytes, path: Path) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        instead = wide_encoding(data)
        reason = f"it is {instead}; save it as UTF-8" if instead else "it is not UTF-8"
        raise ConfigFileError(path, f"not valid TOML: {reason}") from None


def toml_tables(text: str, file: Path) -> dict[str, object]:
    """Return the tables of a file; raise ConfigFileError where it is not TOML."""
    import tomllib

    try:
        return _loaded(text)
    except tomllib.TOMLDecodeError as error:
        reason = str(error)
        place = re.search(r" \(at line (\d+), column (\d+)\)$", reason)
        line, column = (int(place[1]), int(place[2])) if place else (None, None)
        reason = reason[: place.start()] if place else reason
        if reason.endswith(" (at end of document)"):
            line = text.rstrip().count("\n") + 1
        raise ConfigFileError(file, f"not valid TOML: {reason}", line, column) from None
    except RecursionError:
        raise ConfigFileError(file, "not valid TOML: nested too deeply") from None


@lru_cache(maxsize=8)
def _loaded(text: str) -> dict[str, object]:
    """Return the tables of a file, which every directory below it asks for; nobody changes them."""
    import tomllib

    return tomllib.loads(text)

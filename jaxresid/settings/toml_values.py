"""Check values of a TOML file, and name the file and the line of one that is not understood."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path

from jaxresid.base.errors import JaxresidError

_KEY = r"""(?:[\w-]+|"[^"\n]*"|'[^'\n]*')"""
_KEYS = rf"{_KEY}(?:\s*\.\s*{_KEY})*"
_HEADER = re.compile(rf"\s*\[\[?\s*({_KEYS})\s*\]\]?\s*(?:#.*)?$")
_ENTRY = re.compile(rf"\s*({_KEYS})\s*=")


class ConfigError(JaxresidError):
    """The error of a configuration, or of an option overriding it, that is not understood.

    Attributes:
      keys: the keys that lead from the key of [tool.jaxresid] to the one that is wrong.
    """

    def __init__(self, message: str, *keys: str) -> None:
        super().__init__(message)
        self.keys = keys


class ConfigFileError(ConfigError):
    """The error of a configuration file, or of another file that is read with it.

    Attributes:
      file: the file.
      reason: what is wrong there.
      line: the line, from 1; None for the whole file.
      column: the column, from 1; None for the whole line.
    """

    def __init__(
        self, file: Path, reason: str, line: int | None = None, column: int | None = None
    ) -> None:
        place = ":".join(str(part) for part in (display_path(file), line, column) if part)
        super().__init__(f"{place}: {reason}")
        self.file, self.reason, self.line, self.column = file, reason, line, column

    def __reduce__(self) -> tuple[object, ...]:
        """Return what another process, that of the language server, makes it from."""
        return type(self), (self.file, self.reason, self.line, self.column)


def table_in(document: Mapping[str, object], *keys: str) -> Mapping[str, object]:
    """Return the table that keys lead to in a TOML document; empty where there is none."""
    table: object = document
    for key in keys:
        table = table.get(key) if isinstance(table, dict) else None
    return table if isinstance(table, dict) else {}


def flag(key: str, value: object) -> bool:
    """Return the value of a key if it is true or false.

    Raises:
      ConfigError: It is neither.
    """
    if not isinstance(value, bool):
        raise ConfigError(f"`{key}` is {kind_of(value)}; write {key} = true or {key} = false")
    return value


def string(key: str, value: object, example: str) -> str:
    """Return the value of a key if it is a string that is not empty.

    Args:
      key: the key.
      value: its value.
      example: a value as TOML, for the message.

    Raises:
      ConfigError: It is something else.
    """
    if not isinstance(value, str) or not value:
        raise ConfigError(f"`{key}` is {kind_of(value)}; write {key} = {example}")
    return value


def string_list(key: str, value: object, example: str) -> tuple[str, ...]:
    """Return the value of a key if it is a list of strings that are not empty.

    Args:
      key: the key.
      value: its value.
      example: a value as TOML, for the message.

    Raises:
      ConfigError: It is something else.
    """
    if not isinstance(value, list):
        example = f'["{value}"]' if isinstance(value, str) else example
        raise ConfigError(f"`{key}` is {kind_of(value)}; write a list, {key} = {example}")
    for item in value:
        if not isinstance(item, str) or not item:
            raise ConfigError(f"the list `{key}` contains {kind_of(item)}; write {key} = {example}")
    return tuple(value)


def kind_of(value: object) -> str:
    """Return what TOML calls a value: `true`, `the number 3`, `the string "x"`, `a table`."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'the string "{value}"'
    if isinstance(value, (int, float)):
        return f"the number {value}"
    if isinstance(value, (dict, list)):
        return "a table" if isinstance(value, dict) else "a list"
    return str(value)  # a date or a time


def location(file: Path, text: str, *keys: str) -> str:
    """Return where a key of [tool.jaxresid] stands, `pyproject.toml:3`.

    Args:
      file: the file.
      text: the text of the file.
      keys: the keys that lead to it.
    """
    line = line_of(text, *keys)
    return f"{display_path(file)}:{line}" if line else display_path(file)


def line_of(text: str, *keys: str, within: str = "") -> int | None:
    """Return the line of a key of [tool.jaxresid], or of the innermost one that leads to it.

    Args:
      text: the text of the file.
      keys: the keys that lead to it.
      within: a string in its value that is meant.
    """
    wanted = ("tool", "jaxresid", *keys)
    table: tuple[str, ...] = ()
    found, deepest = None, 2
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        if header := _HEADER.match(line):
            path = table = _split(header[1])
        elif entry := _ENTRY.match(line):
            path = (*table, *_split(entry[1]))
        else:
            continue
        pairs = zip(path, wanted, strict=False)
        common = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
        if common > deepest:
            found, deepest = number, common
    if found is None or not within:
        return found
    quoted = re.compile(rf"[\"\']{re.escape(within)}[\"\']")
    below = enumerate(lines[found - 1 :], found)
    return next((number for number, line in below if quoted.search(line)), found)


def _split(keys: str) -> tuple[str, ...]:
    """Return dotted keys one by one, without their quotes."""
    return tuple(key.strip("\"'") for key in re.findall(_KEY, keys))


def display_path(path: Path) -> str:
    """Return a path relative to the working directory where it is below it, else as it is."""
    absolute, cwd = os.path.abspath(path), os.getcwd()
    return os.path.relpath(absolute, cwd) if absolute.startswith(cwd + os.sep) else str(path)

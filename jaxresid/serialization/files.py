"""Save results to files and load them: as JSON, of which nothing is imported or run."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any, NoReturn, TypeVar, overload

from jaxresid.base.errors import DocumentError
from jaxresid.base.text.wide_encodings import wide_encoding
from jaxresid.base.text_files import write_text
from jaxresid.results import SCHEMA_VERSION
from jaxresid.serialization.decoding import DecodeError, decoded
from jaxresid.serialization.encoding import json_document
from jaxresid.serialization.kinds import KINDS, Result
from jaxresid.serialization.layouts import DOCUMENTS

T = TypeVar("T", bound=Result)
_HOW = "-f json of a command and the `save` of a result write such files"


def save(value: Result, path: str | os.PathLike[str]) -> None:
    """Write a result to a file, all of it or nothing.

    Raises:
      JaxresidError: The file cannot be written.
    """
    write_text(os.fspath(path), json_document(value) + "\n")


@overload
def load(path: str | os.PathLike[str]) -> Result: ...


@overload
def load(path: str | os.PathLike[str], kind: type[T]) -> T: ...


def load(path: str | os.PathLike[str], kind: type[Any] | None = None) -> Any:
    """Return the result that a file holds: one that was saved, or what `-f json` printed.

    The file is parsed as JSON, and each field is checked for its type: nothing in it is run. JAX is
    not needed.

    Args:
      path: The file.
      kind: The type that the result is to have, such as `jaxresid.Report`; None for any.

    Raises:
      DocumentError: It cannot be read, or holds something else.
    """
    name = os.fspath(path)
    data = _parsed(name)
    word = data["kind"]
    found = KINDS[word]
    if kind is not None and found is not kind:
        raise DocumentError(f"{name} holds a {found.__name__}, not a {kind.__name__}")
    try:
        return decoded(found, data, DOCUMENTS)
    except DecodeError as e:
        raise DocumentError(f"{name} is no valid {found.__name__}: {e}") from e


def _parsed(name: str) -> dict[str, Any]:
    """Return the JSON object of a document of this version, of a known kind."""
    try:
        if stat.S_ISCHR(os.stat(name).st_mode):  # it may never end
            raise DocumentError(f"cannot read {name}: it is a device")
        raw = Path(name).read_bytes()
    except OSError as e:
        raise DocumentError(f"cannot read {name}: {e.strerror or e}") from e
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        wide = wide_encoding(raw)
        what = f"it is {wide}, not UTF-8" if wide else "it is not text in UTF-8"
        raise DocumentError(f"{name} is not JSON: {what}; {_HOW}") from e
    try:
        data = json.loads(text, parse_constant=_refuse)
    except json.JSONDecodeError as e:
        where = f"{e.msg} at line {e.lineno}, column {e.colno}"
        raise DocumentError(f"{name} is not JSON: {where}; {_HOW}") from e
    except (ValueError, RecursionError) as e:
        raise DocumentError(f"{name} is not JSON: {e}; {_HOW}") from e
    if isinstance(data, list):
        raise DocumentError(
            f"{name} holds a list, as the findings of `check` and `lint` are, and no result; {_HOW}"
        )
    if not isinstance(data, dict) or "schema" not in data:
        raise DocumentError(f"{name} is not a result of jaxresid; {_HOW}")
    version, kind = data["schema"], data.get("kind")
    if type(version) is int and version > SCHEMA_VERSION:
        raise DocumentError(
            f"{name} was written by a later jaxresid: it has schema {version}, and this one reads"
            f" {SCHEMA_VERSION}; upgrade jaxresid to read it"
        )
    if type(version) is not int or version != SCHEMA_VERSION:
        raise DocumentError(f"{name} has schema {json.dumps(version)}, not {SCHEMA_VERSION}")
    if not isinstance(kind, str) or kind not in KINDS:
        known = ", ".join(KINDS)
        raise DocumentError(f"{name} is not a result of jaxresid: its kind is none of {known}")
    return data


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number of JSON")

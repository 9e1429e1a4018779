"""Write values as JSON documents, by the fields of their dataclasses and the layouts of these."""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxresid.base.text.safe_text import json_text
from jaxresid.results import SCHEMA_VERSION, SweepRow
from jaxresid.serialization.decoding import Layout, keys_of_field, layout_of
from jaxresid.serialization.kinds import KINDS
from jaxresid.serialization.layouts import DOCUMENTS

_Put = Callable[[Any, dict[str, Any]], None]
# What a line of a sweep's file leaves out: lines stay short, and whoever reads one resumes from it.
_NOT_IN_LINES = ("buffers", "matched_nbytes", "live_nbytes")


def json_document(value: object) -> str:
    """Return a result as JSON text, a row of a sweep as one line.

    Raises:
      TypeError: It is no result.
    """
    if isinstance(value, SweepRow):
        return _line(value)
    return json_text(_document(value))


def json_documents(values: Sequence[object]) -> str:
    """Return results as JSON text, an array.

    Raises:
      TypeError: One of them is no result.
    """
    return json_text([_document(value) for value in values])


def _document(value: object) -> dict[str, Any]:
    kind = next((word for word, of in KINDS.items() if type(value) is of), None)
    if kind is None:
        raise TypeError(f"a value of type {type(value).__name__} cannot be written as JSON")
    return {"schema": SCHEMA_VERSION, "kind": kind, **encoded(value)}


def encoded(value: Any) -> Any:
    """Return what `json` writes for a value.

    JSON has no number for what is not finite: that is null.
    """
    kind = type(value)
    if kind is str or kind is int or value is None or kind is bool:
        return value
    if isinstance(value, tuple | list):
        return [encoded(item) for item in value]
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: encoded(item) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _object(value)
    return value


def _line(row: SweepRow) -> str:
    """Return a row of a sweep as a line of its file, valid under `sweep-row.schema.json`."""
    line = {"schema": SCHEMA_VERSION, **encoded(row)}
    del line["resumed"]
    if row.compiled is not None:
        line["compiled"] = {k: v for k, v in line["compiled"].items() if k not in _NOT_IN_LINES}
    return json_text(line, indent=None)


def _object(value: Any) -> dict[str, Any]:
    layout = layout_of(type(value), DOCUMENTS)
    found: dict[str, Any] = {}
    kind: Any = type(value)
    for put in _fields(kind):
        put(value, found)
    for key, holders in layout.shared.items():
        found = _with_shared(found, key, holders)
    if not layout.derived:
        return found
    derived = {key: encoded(made(value)) for key, made in layout.derived.items()}
    return {**derived, layout.below: found} if layout.below else {**found, **derived}


def _with_shared(found: dict[str, Any], key: str, holders: Sequence[str]) -> dict[str, Any]:
    """Return an object with what some keys below it hold in a list of its own, each once.

    These keys hold numbers in that list.
    """
    numbers: dict[tuple[Any, ...], int] = {}
    each: list[dict[str, Any]] = []

    def number(item: dict[str, Any] | None) -> int | None:
        if item is None:
            return None
        values = tuple(item.values())
        if values not in numbers:
            numbers[values] = len(each)
            each.append(item)
        return numbers[values]

    def shared(item: Any) -> Any:
        if isinstance(item, list):
            return [shared(part) for part in item]
        if not isinstance(item, dict):
            return item
        return {k: held(v) if k in holders else shared(v) for k, v in item.items()}

    def held(item: Any) -> Any:
        return [number(part) for part in item] if isinstance(item, list) else number(item)

    return {**shared(found), key: each}


@functools.cache
def _fields(kind: Any) -> tuple[_Put, ...]:
    """Return for each field of a dataclass the function that puts it into the object of a value."""
    names = (each.name for each in dataclasses.fields(kind))
    return tuple(_field(name, kind, layout_of(kind, DOCUMENTS)) for name in names)


def _field(name: str, kind: type, layout: Layout) -> _Put:
    keys, held = keys_of_field(kind, name, DOCUMENTS), operator.attrgetter(name)

    def spread(value: Any, found: dict[str, Any]) -> None:
        inner = held(value)
        found.update(dict.fromkeys(keys) if inner is None else _object(inner))

    def put(value: Any, found: dict[str, Any]) -> None:
        found[keys[0]] = written(held(value))

    written: Callable[[Any], Any] = encoded
    if name in layout.objects:
        written = _pairs
    elif name in layout.from_one:
        written = _from_one
    elif name in layout.blank:
        written = _blank_as_null
    return spread if name in layout.spread else put


def _pairs(pairs: Any) -> dict[str, Any]:
    return {name: encoded(value) for name, value in pairs}


def _from_one(number: int | None) -> int | None:
    return None if number is None else number + 1


def _blank_as_null(text: str) -> str | None:
    return text or None

"""Write values as JSON documents, by the fields of their dataclasses and the layouts of these."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Mapping
from typing import Any

from jaxresid.decoding import Layout, keys_of_field, layout_of
from jaxresid.documents.kinds import KINDS
from jaxresid.documents.layouts import DOCUMENTS
from jaxresid.model import SCHEMA_VERSION, SweepRow
from jaxresid.safe_text import json_text

# What a line of a sweep's file leaves out: lines stay short, and whoever reads one resumes from it.
_NOT_IN_LINES = ("buffers", "matched_nbytes", "live_nbytes")


def json_document(value: object) -> str:
    """Return a result as JSON text, a row of a sweep as one line.

    Raises:
      TypeError: It is no result.
    """
    if isinstance(value, SweepRow):
        return _line(value)
    kind = next((word for word, of in KINDS.items() if type(value) is of), None)
    if kind is None:
        raise TypeError(f"a value of type {type(value).__name__} cannot be written as JSON")
    return json_text({"schema": SCHEMA_VERSION, "kind": kind, **encoded(value)})


def encoded(value: Any) -> Any:
    """Return what `json` writes for a value.

    JSON has no number for what is not finite: that is null.
    """
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _object(value)
    if isinstance(value, Mapping):
        return {key: encoded(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [encoded(item) for item in value]
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
    found = _fields(value, layout)
    derived = {key: encoded(made(value)) for key, made in layout.derived.items()}
    return {**derived, layout.below: found} if layout.below else {**found, **derived}


def _fields(value: Any, layout: Layout) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for each in dataclasses.fields(value):
        held = getattr(value, each.name)
        if each.name in layout.spread:
            keys = keys_of_field(type(value), each.name, DOCUMENTS)
            found |= dict.fromkeys(keys) if held is None else _object(held)
            continue
        (key,) = keys_of_field(type(value), each.name, DOCUMENTS)
        if each.name in layout.objects:
            found[key] = encoded(dict(held))
        elif each.name in layout.from_one and held is not None:
            found[key] = held + 1
        elif each.name in layout.blank:
            found[key] = held or None
        else:
            found[key] = encoded(held)
    return found

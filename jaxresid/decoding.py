"""Decode JSON into frozen values, checking that each field has its declared type.

The JSON may have been written by others, as an entry of a cache may be: it is either a valid value
of the type or rejected.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Mapping
from typing import Any


def decoded(kind: Any, value: Any) -> Any:
    """Return a JSON value as a value of a type, or raise if it does not fit.

    Args:
      kind: a dataclass, a tuple, a mapping, a union, a Literal, or a plain type.
      value: what `json` has parsed.

    Raises:
      ValueError: The JSON is not a value of this type.
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any or kind is object:
        return value
    if dataclasses.is_dataclass(kind):
        return _made(kind, value)
    if origin in (typing.Union, types.UnionType):
        for one in arguments:
            try:
                return decoded(one, value)
            except ValueError:
                continue
    elif origin is typing.Literal:
        if isinstance(value, str) and value in arguments:
            return value
    elif origin is tuple and isinstance(value, list):
        if arguments[-1:] == (Ellipsis,):
            return tuple(decoded(arguments[0], item) for item in value)
        if len(arguments) == len(value):
            return tuple(map(decoded, arguments, value))
    elif origin is Mapping and isinstance(value, dict):
        keys, values = arguments
        return {decoded(keys, k): decoded(values, v) for k, v in value.items()}
    elif kind in (None, type(None)):
        if value is None:
            return None
    elif kind is float:
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return value
    elif type(value) is kind:
        return value
    raise ValueError(f"a value of type {type(value).__name__} is not a {kind}")


def _made(kind: Any, value: Any) -> Any:
    if not isinstance(value, dict):
        raise ValueError(f"a {kind.__name__} is an object")
    hints = _hints(kind)
    if value.keys() != hints.keys():
        raise ValueError(f"a {kind.__name__} has other fields")
    return kind(**{name: decoded(hints[name], item) for name, item in value.items()})


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)

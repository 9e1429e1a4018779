"""A short `repr` for values that may hold megabytes."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

LIMIT = 500


class _Detail(NamedTuple):
    depth: int  # of dataclasses in dataclasses
    items: int  # of a tuple or a mapping
    width: int  # of a text


# What is tried in turn until the text is short enough.
_DETAILS = (_Detail(3, 4, 80), _Detail(2, 3, 60), _Detail(1, 2, 40), _Detail(0, 1, 20))


class Shown:
    """A dataclass whose `repr` is short: without fields that have their default, and cut.

    `dataclasses.asdict` and the JSON of a result have all of it. The dataclass is made with
    `repr=False`.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        for detail in _DETAILS:
            text = _dataclass(self, detail)
            if len(text) <= LIMIT:
                return text
        return cut(text, LIMIT)


def cut(text: str, width: int) -> str:
    """Return text that is no longer than a width; of a negative width its end is kept."""
    if len(text) <= abs(width):
        return text
    return f"{text[: width - 1]}…" if width > 0 else f"…{text[width + 1 :]}"


def printable(text: str, width: int = 80) -> str:
    """Return text in one line, cut to a width, in which nothing acts on a terminal."""
    return cut(repr(text)[1:-1], width)


def _text(value: Any, detail: _Detail) -> str:
    if isinstance(value, enum.Enum):
        return repr(value.value)
    if isinstance(value, str):
        return repr(cut(value, detail.width))
    if isinstance(value, Shown):
        own = type(value).__repr__ is not Shown.__repr__  # a short one
        return repr(value) if own else _dataclass(value, detail)
    if isinstance(value, tuple | list):
        inner = _listed((_text(each, detail) for each in value), len(value), detail)
        comma = "," * (len(value) == 1 and isinstance(value, tuple))
        return f"({inner}{comma})" if isinstance(value, tuple) else f"[{inner}]"
    if isinstance(value, Mapping):
        pairs = (f"{_text(k, detail)}: {_text(v, detail)}" for k, v in value.items())
        return f"{{{_listed(pairs, len(value), detail)}}}"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        # An array: its elements may be on a device, and many.
        return f"{value.dtype}[{','.join(map(str, value.shape))}]"
    return cut(repr(value), detail.width)


def _listed(texts: Iterable[str], count: int, detail: _Detail) -> str:
    shown = [text for text, _ in zip(texts, range(detail.items), strict=False)]
    more = [f"… {count - len(shown)} more"] if count > len(shown) else []
    return ", ".join(shown + more)


def _dataclass(value: Any, detail: _Detail) -> str:
    name = type(value).__name__
    if detail.depth < 0:
        return f"{name}(…)"
    inside = detail._replace(depth=detail.depth - 1)
    shown = []
    for each in dataclasses.fields(value):
        held = getattr(value, each.name)
        if each.repr and not _is_default(each, held):
            shown.append(f"{each.name}={_text(held, inside)}")
    return f"{name}({', '.join(shown)})"


def _is_default(each: dataclasses.Field[Any], held: Any) -> bool:
    if each.default_factory is not dataclasses.MISSING:
        return not held
    return bool(held == each.default)

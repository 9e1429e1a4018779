"""A curve as one line of characters."""

from __future__ import annotations

from collections.abc import Sequence

_BLOCKS = "▁▂▃▄▅▆▇█"
_ASCII = ".:-=+*#@"


def sparkline(values: Sequence[int], width: int, encoding: str = "utf-8") -> str:
    """Return `values` as one line of characters, `width` columns wide.

    They run from left to right, between their lowest and their highest. Where there are more values
    than columns, a column shows the greatest of its own. The characters are blocks, or ASCII where
    `encoding` has no blocks.
    """
    levels = _BLOCKS if can_encode(_BLOCKS, encoding) else _ASCII
    low, high = min(values), max(values)
    shown = []
    for i in range(width):
        start = i * len(values) // width
        value = max(values[start : max((i + 1) * len(values) // width, start + 1)])
        level = (value - low) * len(levels) // (high - low) if high > low else len(levels)
        shown.append(levels[min(level, len(levels) - 1)])
    return "".join(shown)


def column(at: int, count: int, width: int) -> int:
    """Return the column that shows value `at` of `count`; the middle one where several do."""
    last = ((at + 1) * width - 1) // count
    first = min(-(-at * width // count), last)
    return (first + last) // 2


def can_encode(text: str, encoding: str) -> bool:
    """Return whether a stream of an encoding takes a text as it is."""
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True

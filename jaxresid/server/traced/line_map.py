"""Which line of a file as it was is which line of it as it is now."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Mapping, Sequence


def line_map(before: Sequence[str], now: Sequence[str]) -> Mapping[int, int]:
    """Return where the lines went whose text is the same: rows, from 1."""
    # Most edits are in one place, and comparing all lines takes long.
    head = 0
    least = min(len(before), len(now))
    while head < least and before[head] == now[head]:
        head += 1
    tail = 0
    while tail < least - head and before[-1 - tail] == now[-1 - tail]:
        tail += 1
    rows = {row: row for row in range(1, head + 1)}
    moved = len(now) - len(before)
    rows |= {row: row + moved for row in range(len(before) - tail + 1, len(before) + 1)}
    old, new = before[head : len(before) - tail], now[head : len(now) - tail]
    # What occurs more than once says nothing by itself, only beside what does.
    often = Counter(new)
    matcher = difflib.SequenceMatcher(lambda line: often[line] > 1, old, new, autojunk=False)
    for block in matcher.get_matching_blocks():
        rows |= {head + block.a + i + 1: head + block.b + i + 1 for i in range(block.size)}
    return rows

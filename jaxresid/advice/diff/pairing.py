"""Find for each line of one report the line of the other that it was.

Lines are paired by what they compute, the function they are in, the roles of what they keep and
their order: what moved, was renamed, reformatted or put into a helper is followed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

from jaxresid.advice.diff.line_text import RENAMED, SAME, abstracted, expression, likeness
from jaxresid.advice.diff.lines import Line

# How much each counts when several lines could be the one.
_TEXT, _ROLES, _FUNCTION, _FILE, _ORDER = 3.0, 1.5, 1.0, 0.5, 0.5
# What two lines need at least to be one: so much of the same text, or the same function and so
# much of the same roles.
_ENOUGH_TEXT, _ENOUGH_ROLES = 0.5, 0.5


@dataclass(frozen=True, slots=True)
class Pair:
    """A line of the earlier report and the line that it is in the later one, by index.

    Attributes:
      is_sure: whether both compute the same, names of variables aside.
    """

    before: int
    after: int
    is_sure: bool


def paired(before: Sequence[Line], after: Sequence[Line]) -> tuple[Pair, ...]:
    """Return the pairs of lines of two reports, each line in at most one."""
    pairs = _unchanged(before, after)
    used_before = {pair.before for pair in pairs}
    used_after = {pair.after for pair in pairs}
    scored = []
    for i, j in _candidates(before, after, used_before, used_after):
        one, other = before[i], after[j]
        text, roles = text_likeness(one, other), _common(one, other)
        in_same = bool(_functions(one) & _functions(other))
        if text < _ENOUGH_TEXT and not (in_same and roles >= _ENOUGH_ROLES):
            continue
        score = _TEXT * text + _ROLES * roles + _FUNCTION * in_same
        score += _FILE * (_file(one) == _file(other)) + _ORDER * _order(i, j, before, after)
        scored.append((-score, abs(i - j), i, j, text >= RENAMED))
    for _, _, i, j, is_sure in sorted(scored):
        if i not in used_before and j not in used_after:
            used_before.add(i)
            used_after.add(j)
            pairs.append(Pair(i, j, is_sure))
    return tuple(pairs)


def relation(one: Line, other: Line) -> float:
    """Return how likely a value of one line is computed at the other now, from 0 to 1.

    It may be where they share text, or where one is in a function through which the other was
    reached.
    """
    through = bool(_functions(one) & other.callers or _functions(other) & one.callers)
    return max(text_likeness(one, other), _ENOUGH_TEXT * through)


def text_likeness(one: Line, other: Line) -> float:
    """Return how alike the code of two lines is; without code, what they call."""
    if one.location is not None and other.location is not None:
        return likeness(one.location.code, other.location.code)
    if one.location is None and other.location is None:
        return SAME if _outside(one) == _outside(other) else 0.0
    return 0.0


def _unchanged(before: Sequence[Line], after: Sequence[Line]) -> list[Pair]:
    """Return the pairs of lines that compute the same in functions of one name.

    Where a function has several such lines they are paired in order, if there are as many.
    """
    ours, theirs = _index(before, _unchanged_keys), _index(after, _unchanged_keys)
    return [
        Pair(i, j, True)
        for key, indices in ours.items()
        if len(indices) == len(theirs.get(key, ()))
        for i, j in zip(indices, theirs[key], strict=True)
    ]


def _candidates(
    before: Sequence[Line], after: Sequence[Line], used_before: set[int], used_after: set[int]
) -> set[tuple[int, int]]:
    candidates: set[tuple[int, int]] = set()
    for keys in (_texts, _functions, _roles):
        theirs = _index(after, keys)
        for i, line in enumerate(before):
            if i not in used_before:
                for key in keys(line):
                    candidates.update((i, j) for j in theirs.get(key, ()) if j not in used_after)
    return candidates


def _index(
    lines: Sequence[Line], keys: Callable[[Line], set[Hashable]]
) -> Mapping[Hashable, list[int]]:
    by_key: dict[Hashable, list[int]] = defaultdict(list)
    for i, line in enumerate(lines):
        for key in keys(line):
            by_key[key].append(i)
    return by_key


def _unchanged_keys(line: Line) -> set[Hashable]:
    where = line.location
    return {_outside(line) if where is None else (where.function, expression(where.code))}


def _texts(line: Line) -> set[Hashable]:
    return {_outside(line) if line.location is None else abstracted(line.location.code)}


def _functions(line: Line) -> set[Hashable]:
    return set() if line.location is None else {line.location.function}


def _roles(line: Line) -> set[Hashable]:
    return {*line.roles}


def _outside(line: Line) -> tuple[str | None, str]:
    library = line.source.library
    return (library.function if library else None), line.scope


def _common(one: Line, other: Line) -> float:
    every = sum((one.roles | other.roles).values())
    return sum((one.roles & other.roles).values()) / every if every else 1.0


def _file(line: Line) -> str | None:
    return line.location.file if line.location else None


def _order(i: int, j: int, before: Sequence[Line], after: Sequence[Line]) -> float:
    return 1 - abs(i / len(before) - j / len(after))

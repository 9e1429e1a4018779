"""Fold paths of repeated layers, `params['layers'][3]['w']` or `encoder/layer_3/mlp`, into one."""

from __future__ import annotations

import re
from collections.abc import Iterable

_NUMBER = re.compile(r"(\d+)")
_SUFFIX = re.compile(r"_?\d+")


def pattern(path: str) -> str:
    """Return a path with stars for its numbers, which is equal for repeated layers.

    For example, `params['layers'][3]['w']` becomes `params['layers'][*]['w']`.
    """
    return _NUMBER.sub("*", path)


def folded(paths: Iterable[str]) -> str:
    """Return one path that stands for several paths of the same pattern.

    Indices that differ become the range they cover, `blocks[0..11].mlp`; other numbers that differ
    become a star, `layers/*/mlp`. What is the same in all paths is kept.
    """
    each = [_NUMBER.split(path) for path in dict.fromkeys(paths)]
    if not each:
        return ""
    parts = list(each[0])
    for at in range(1, len(parts), 2):
        numbers = {int(path[at]) for path in each}
        if len({path[at] for path in each}) > 1:
            parts[at] = _range(numbers) if _is_index(parts, at) else "*"
    return "".join(parts)


def scope_key(scope: str) -> str:
    """Return a key that is equal for the module paths of repeated layers.

    The first of them may have no number: `dense`, `dense_1`.
    """
    return _SUFFIX.sub("", scope)


def folded_scopes(scopes: Iterable[str]) -> str:
    """Return module paths as a short, comma-separated list, with repeated layers folded into one.

    Repeated layers are written as `layers/*/mlp`, also where the first of them has no number,
    `dense_*`.
    """
    groups: dict[str, list[str]] = {}
    for scope in scopes:
        if scope:
            groups.setdefault(scope_key(scope), []).append(scope)
    return ", ".join(_folded_scope(alike) for alike in groups.values())


def _folded_scope(alike: list[str]) -> str:
    if len({pattern(scope) for scope in alike}) == 1:
        return folded(alike)
    parts = zip(*(scope.split("/") for scope in alike), strict=False)
    return "/".join(p[0] if len(set(p)) == 1 else max(map(pattern, p), key=len) for p in parts)


def _is_index(parts: list[str], at: int) -> bool:
    return parts[at - 1].endswith("[") and parts[at + 1].startswith("]")


def _range(numbers: set[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low}..{high}" if len(numbers) == high - low + 1 else "*"

"""Compute with splits of arrays over a mesh.

A split holds for each dim the axes that split it, the major one first.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence

Split = tuple[tuple[str, ...], ...]


def parts(axes: Iterable[str], sizes: Mapping[str, int]) -> int:
    """Return into how many pieces some axes split a dim."""
    return math.prod(sizes[axis] for axis in axes)


def shard(shape: Sequence[int], split: Split, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return the shape of the largest piece, which is what every device has room for."""
    return tuple(-(-size // parts(axes, sizes)) for size, axes in zip(shape, split, strict=True))


def text(split: Split) -> str:
    """Return a split as it is after the `@` of a SPEC, `data,model`; '' where nothing is split."""
    last = max((i for i, axes in enumerate(split) if axes), default=-1)
    return ",".join(_entry(axes) for axes in split[: last + 1])


def split_of_text(spec: str, rank: int) -> Split:
    """Return the split of an array of some rank that a text describes, as `text` makes it."""
    entries = re.findall(r"\(([^()]*+)\)|([^,()]+)", spec)
    dims = [tuple(several.split(",")) if several else (one,) for several, one in entries]
    split = [() if axes == ("None",) else axes for axes in dims]
    return (*split, *[()] * (rank - len(split)))


def _entry(axes: tuple[str, ...]) -> str:
    if len(axes) == 1:
        return axes[0]
    return f"({','.join(axes)})" if axes else "None"


def fitting(
    shape: Sequence[int], piece: Sequence[int], sizes: Mapping[str, int], likely: Split
) -> Split | None:
    """Return a split that makes pieces of this shape: `likely` if it does, else the first there is.

    The order of axes whose sizes are equal cannot be told from shapes. None: there is no such
    split.
    """
    if shard(shape, likely, sizes) == tuple(piece):
        return likely
    dims: list[tuple[str, ...]] = []
    free = [axis for axis in sizes if sizes[axis] > 1]
    for size, part in zip(shape, piece, strict=True):
        count = -(-size // part) if part else 1
        chosen = _factored(count, free, sizes)
        if chosen is None:
            return None
        free = [axis for axis in free if axis not in chosen]
        dims.append(chosen)
    return tuple(dims)


def _factored(count: int, free: Sequence[str], sizes: Mapping[str, int]) -> tuple[str, ...] | None:
    if count == 1:
        return ()
    for i, axis in enumerate(free):
        if count % sizes[axis] == 0:
            rest = _factored(count // sizes[axis], free[i + 1 :], sizes)
            if rest is not None:
                return (axis, *rest)
    return None

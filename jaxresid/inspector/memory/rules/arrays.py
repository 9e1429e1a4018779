"""Groups of arrays, of which large ones share what they have in common.

A value is computed from the arrays that its operands are computed from. Written out for each value,
those of a chain of n sums would be n * n / 2.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

from jaxresid.inspector.program.ops import Value

# So many are written out.
_FEW = 64


class Joined:
    """The arrays of several groups, written out when they are asked for."""

    __slots__ = ("_listed", "_parts")

    def __init__(self, parts: tuple[Arrays, ...]) -> None:
        self._parts: Final = parts
        self._listed: tuple[Value, ...] | None = None

    def listed(self) -> tuple[Value, ...]:
        """Return the arrays, each once, those of the first group first."""
        if self._listed is None:
            arrays: dict[Value, None] = {}
            seen = {id(self)}
            left: list[Arrays] = [*reversed(self._parts)]
            while left:
                part = left.pop()
                if isinstance(part, tuple):
                    arrays.update(dict.fromkeys(part))
                elif part._listed is not None:
                    arrays.update(dict.fromkeys(part._listed))
                elif id(part) not in seen:
                    seen.add(id(part))
                    left += reversed(part._parts)
            self._listed = tuple(arrays)
        return self._listed


Arrays = tuple[Value, ...] | Joined


def listed(arrays: Arrays) -> tuple[Value, ...]:
    """Return the arrays of a group, each once."""
    return arrays if isinstance(arrays, tuple) else arrays.listed()


def joined(groups: Sequence[Arrays]) -> Arrays:
    """Return the arrays of several groups as one group, those of the first group first."""
    if not groups:
        return ()
    first = groups[0]
    if len(groups) == 1 or (len(groups) == 2 and groups[1] is first):
        return first
    if all(isinstance(group, tuple) for group in groups):
        arrays = tuple(dict.fromkeys(itertools.chain.from_iterable(map(listed, groups))))
        if len(arrays) <= _FEW:
            return arrays
    parts = tuple({id(group): group for group in groups if group != ()}.values())
    return parts[0] if len(parts) == 1 else Joined(parts)

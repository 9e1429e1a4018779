"""What sequences have in common: of frames, of names."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

_T = TypeVar("_T", bound=Hashable)


def common_prefix(sequences: Iterable[Sequence[_T]]) -> tuple[_T, ...]:
    """Return what all sequences begin with; nothing where there are none."""
    columns = zip(*sequences, strict=False)
    same = itertools.takewhile(lambda column: len(set(column)) == 1, columns)
    return tuple(column[0] for column in same)

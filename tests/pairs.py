"""Cases of two parameters, of which the gate runs a part."""

import pytest


def in_turn(first, second, turns=1):
    """Return all pairs as cases, most of them marked `programs`.

    Without the mark are those in which each value of `first` meets the next `turns` of `second`, so
    that every value of both occurs in the gate (if `first` is the longer one), and not every pair.
    """
    return [
        pytest.param(a, b, marks=() if (j - i) % len(second) < turns else pytest.mark.programs)
        for i, a in enumerate(first)
        for j, b in enumerate(second)
    ]

"""What each further level of segments is worth to a loop of L iterations, by counting.

    python -m tests.benchmarks.nesting [FIRST LAST]

A loop keeps what enters each of its segments, on every level, and what is inside of one innermost
segment: its iterations' residuals, or with checkpoints around iterations what enters these. Each
level computes the covered iterations once more. All ways to cut each L from FIRST to LAST (8 and
128) are tried, with iterations that keep 1.5 to 32 times what enters them, at every budget at which
something changes. Printed is of each number of levels, against one more: in how many of these cases
another level spares over 1 % of what is recomputed, the most that it spares, in how many it alone
fits, and by how much the lowest that is kept falls at most. That the search finds what an
enumeration of traces does is in `tests/advice/test_nesting.py`.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterable, Iterator

from jaxresid.inspector.variants.nesting import split

INSIDE = (1.5, 2, 3, 4, 6, 8, 12, 16, 32)
LEVELS = 4
SPARED = 0.01
# What is kept, in units of what enters an iteration; what is recomputed, in runs of the loop.
Point = tuple[float, float]


def main() -> None:
    first, last = map(int, sys.argv[1:3]) if len(sys.argv) > 2 else (8, 128)
    fronts = {
        (length, inside, levels): front(points(length, inside, levels))
        for length in range(first, last + 1)
        for inside in INSIDE
        for levels in range(1, LEVELS + 1)
    }
    print(f"{'levels':8} {'cases':>7} {'> 1 % less':>10} {'most':>6} {'only fit':>8} {'lowest':>7}")
    for levels in range(1, LEVELS):
        spared, cases, alone, lower = [], 0, 0, 0.0
        for length, inside in itertools.product(range(first, last + 1), INSIDE):
            fewer, more = fronts[length, inside, levels], fronts[length, inside, levels + 1]
            for budget in sorted({kept for kept, _ in (*fewer, *more)}):
                cases += 1
                ours, theirs = cheapest(fewer, budget), cheapest(more, budget)
                if ours == math.inf:
                    alone += theirs < math.inf
                elif theirs < ours:
                    spared.append(1 - theirs / ours)
            lower = max(lower, 1 - more[0][0] / fewer[0][0])
        much = sum(share > SPARED for share in spared)
        print(
            f"{levels} or {levels + 1:<3} {cases:7} {much:10} {max(spared, default=0):6.1%}"
            f" {alone:8} {-lower:7.1%}"
        )


def cuts(length: int, levels: int) -> Iterator[tuple[int, ...]]:
    """Yield the sizes of segments, the outermost first, on one level up to so many."""
    for size in range(2, length // 2 + 1):
        yield (size,)
        if levels > 1:
            yield from ((size, *rest) for rest in cuts(size, levels - 1) if size % rest[0] == 0)


def points(length: int, inside: float, levels: int) -> Iterator[Point]:
    """Yield what is kept and what is recomputed of every way to cut a loop."""
    for each, again in ((inside, 0.0), (1.0, 1.0)):
        yield length * each, again
        for sizes in cuts(length, levels):
            counts, rest = split(length, sizes), length % sizes[0]
            kept = max(sum(counts[:-1]) + sizes[-1] * each, counts[0] + rest * each)
            yield kept, again + len(sizes) * (length - rest) / length


def front(found: Iterable[Point]) -> list[Point]:
    """Return the points that no other beats in both, the one that keeps least first."""
    best: list[Point] = []
    for point in sorted(set(found)):
        if not best or point[1] < best[-1][1] - 1e-9:
            best.append(point)
    return best


def cheapest(points: Iterable[Point], budget: float) -> float:
    """Return the least that is recomputed within a budget; infinity where nothing fits."""
    return min((again for kept, again in points if kept <= budget), default=math.inf)


if __name__ == "__main__":
    main()

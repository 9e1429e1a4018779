"""Find the choices worth considering among several: the Pareto-optimal ones and the knee."""

from __future__ import annotations

from collections.abc import Sequence

# Cost and benefit of a choice, of both less is better: peak bytes, recomputed FLOPs.
Point = tuple[float, float]


def pareto(points: Sequence[Point]) -> tuple[bool, ...]:
    """Return for each point whether it is Pareto-optimal.

    A point is if no other point is lower in one coordinate and no higher in the other. Equal points
    are optimal together.
    """
    best: dict[Point, bool] = {}
    lowest = float("inf")
    for point in sorted(set(points)):
        best[point] = point[1] < lowest
        lowest = min(lowest, point[1])
    return tuple(best[point] for point in points)


def knee(points: Sequence[Point]) -> Point | None:
    """Return the knee of a frontier, or None where it has none.

    It is the point that lies farthest below the straight line between the frontier's ends, with
    both coordinates scaled to their ranges (Satopaa et al., "Finding a 'Kneedle' in a Haystack",
    2011). There is none where there are fewer than three different points, or none of them lies
    below the line.
    """
    ordered = sorted(set(points))
    if len(ordered) < 3:
        return None
    (x0, y0), (x1, y1) = ordered[0], ordered[-1]
    if x0 == x1 or y0 == y1:
        return None

    def below(point: Point) -> float:
        return 1 - (point[0] - x0) / (x1 - x0) - (point[1] - y1) / (y0 - y1)

    best = max(ordered, key=below)
    return best if below(best) > 1e-9 else None

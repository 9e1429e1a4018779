"""Mark the rows of a comparison that XLA ranks otherwise, and those worth considering."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jaxresid.advice.compare import pareto as frontier
from jaxresid.results import ComparisonRow


def ranked(rows: Sequence[ComparisonRow]) -> tuple[ComparisonRow, ...]:
    """Return the rows with those marked whose rank by peak XLA changes.

    They are compared by XLA's peaks where all have one.
    """
    peaks = {
        i: (row.peak_nbytes, row.xla_nbytes)
        for i, row in enumerate(rows)
        if row.peak_nbytes is not None and row.xla_nbytes is not None
    }
    estimates, figures = ([pair[k] for pair in peaks.values()] for k in (0, 1))
    by_xla = all(row.xla_nbytes is not None for row in rows if row.error is None)
    return tuple(
        replace(
            row,
            by="xla" if by_xla and row.xla_nbytes is not None else "estimate",
            rank_changed=i in peaks
            and _ranks(peaks[i][0], estimates).isdisjoint(_ranks(peaks[i][1], figures)),
        )
        for i, row in enumerate(rows)
    )


def _ranks(nbytes: int, others: Sequence[int]) -> frozenset[int]:
    """Return the ranks that a peak may be said to have: several where it is equal to others."""
    lower = sum(other < nbytes for other in others)
    return frozenset(range(lower, lower + others.count(nbytes)))


def with_frontier(rows: Sequence[ComparisonRow]) -> tuple[ComparisonRow, ...]:
    """Rows that keep bytes in host memory do not take part."""
    points = {
        i: (float(row.compared_nbytes), float(row.recompute_flops))
        for i, row in enumerate(rows)
        if row.compared_nbytes is not None
        and row.recompute_flops is not None
        and not row.host_nbytes
    }
    optimal = frontier.pareto(list(points.values()))
    best = {i for i, is_optimal in zip(points, optimal, strict=True) if is_optimal}
    at = frontier.knee([points[i] for i in best])
    first = next((i for i in sorted(best) if points[i] == at), None)
    return tuple(replace(row, pareto=i in best, knee=i == first) for i, row in enumerate(rows))

"""The lifetimes of a program and the residuals of a report, in columns for a page."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jaxresid.render.page.tables import Tables
from jaxresid.results import Computed, Lifetime, Lifetimes, Location, Residual, Source


@dataclass(frozen=True, slots=True)
class Most:
    """How much of a program a page has.

    Attributes:
      points: so many points at most; of more the one with most bytes of each stretch is there.
      values: so many values at most, the biggest. What the others add up to at a point is what is
        missing to the point's bytes.
    """

    points: int
    values: int


# A page has all of its first program; of 10,000 values in 7,000 points that is about 1 MB.
WHOLE = Most(10_000, 10_000)
# The other programs of a page, such as the rows of a comparison, share this.
_OTHERS = Most(20_000, 10_000)


def share_of_others(count: int) -> Most:
    """Return how much a page has of each of its `count` other programs."""
    count = max(count, 1)
    return Most(max(_OTHERS.points // count, 300), max(_OTHERS.values // count, 300))


def program(lifetimes: Lifetimes, tables: Tables, most: Most) -> dict[str, Any]:
    """Return a program's points and values, a list for each property.

    Args:
      lifetimes: the program.
      tables: what the numbers of texts, places and shapes refer to.
      most: how much of it is wanted.
    """
    chosen = _chosen(lifetimes, most.points)
    points = [lifetimes.points[i] for i in chosen]
    values = sorted(lifetimes.values, key=lambda value: -value.live.nbytes)[: most.values]
    return {
        "name": lifetimes.name,
        "at": chosen.index(lifetimes.at),
        "nbytes": lifetimes.nbytes,
        "low": lifetimes.low_nbytes,
        "high": lifetimes.high_nbytes,
        "op": chosen if len(chosen) < len(lifetimes.points) else None,
        "ops": len(lifetimes.points),
        "points": {
            "nbytes": [point.nbytes for point in points],
            "primitive": [tables.text(point.primitive) for point in points],
            "place": [tables.place(point.source.location) for point in points],
            "library": [tables.place(point.source.library) for point in points],
            "phase": [tables.text(point.phase) for point in points],
        },
        "values": _columns(values, chosen, tables),
    }


def _chosen(lifetimes: Lifetimes, at_most: int) -> list[int]:
    """Return the indices of the points to show; the peak is one of them."""
    points = lifetimes.points
    if len(points) <= at_most:
        return list(range(len(points)))
    edges = [i * len(points) // at_most for i in range(at_most + 1)]
    chosen = []
    for start, stop in itertools.pairwise(edges):
        is_peak = start <= lifetimes.at < stop
        highest = max(range(start, stop), key=lambda i: points[i].nbytes)
        chosen.append(lifetimes.at if is_peak else highest)
    return chosen


def _columns(
    values: Sequence[Lifetime], chosen: Sequence[int], tables: Tables
) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {name: [] for name in _NAMES}
    for value in values:
        start = bisect.bisect_left(chosen, value.start)
        stop = bisect.bisect_left(chosen, value.stop)
        if start == stop:  # between two points that are shown
            continue
        for name, each in zip(_NAMES, (start, stop, *_row(value, tables)), strict=True):
            columns[name].append(each)
    return columns


_NAMES = (
    *("start", "stop", "kind", "nbytes", "count", "reason", "aval", "primitive", "path"),
    *("place", "library", "scope", "phase", "read", "inside"),
)


def _row(value: Lifetime, tables: Tables) -> tuple[int, ...]:
    live = value.live
    return (
        tables.text(live.kind),
        live.nbytes,
        live.count,
        tables.text(value.reason),
        tables.aval(live.aval),
        tables.text(live.primitive),
        tables.text(live.path),
        *tables.source(live.source),
        tables.text(live.source.scope),
        tables.text(live.phase),
        tables.place(_shown(value.read_at)),
        tables.place(_shown(value.inside)),
    )


def _shown(source: Source | None) -> Location | None:
    return None if source is None else source.location or source.library


def residuals(found: Sequence[Residual], tables: Tables) -> dict[str, list[Any]]:
    """Return the computed residuals in device memory, a list for each property."""
    kept = [
        (each, each.origin)
        for each in found
        if isinstance(each.origin, Computed) and each.aval.memory == "device" and each.nbytes
    ]
    return {
        "nbytes": [each.nbytes for each, _ in kept],
        "trips": [each.trips for each, _ in kept],
        "aval": [tables.aval(each.aval) for each, _ in kept],
        "primitive": [tables.text(origin.primitive) for _, origin in kept],
        "name": [tables.text(origin.name) for _, origin in kept],
        "path": [tables.text(origin.path) for _, origin in kept],
        "place": [tables.place(origin.location) for _, origin in kept],
        "library": [tables.place(origin.library) for _, origin in kept],
        "scope": [tables.text(origin.scope) for _, origin in kept],
    }

"""Thin the bytes over a program to a curve, and tell which pass each stretch of it is."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from jaxresid.inspector.jaxpr.phases import BACKWARD, PROGRAM, RECOMPUTE
from jaxresid.inspector.memory.liveness import Timeline
from jaxresid.results import CurvePass, PhaseSpan

_POINTS = 200
# A pass that is a smaller share of the curve, such as a cast between two others, is not shown.
_SHORTEST = 1 / 50


def highest(nbytes: Sequence[int], most: int) -> list[int]:
    """Return at most `most` indices, of equal stretches of the bytes that of the most in each."""
    count = min(len(nbytes), most)
    edges = [i * len(nbytes) // count for i in range(count + 1)]
    return [max(range(a, b), key=nbytes.__getitem__) for a, b in itertools.pairwise(edges)]


def curve_of(
    timeline: Timeline, outside: int
) -> tuple[tuple[int, ...], int, tuple[PhaseSpan, ...]]:
    """Return the bytes over a program, thinned, the index of the peak in them, and their passes.

    Args:
      outside: the bytes of arguments and outputs.
    """
    values = [outside + p.nbytes for p in timeline.points] or [outside]
    phases: list[CurvePass] = [
        BACKWARD if p.op.phase == RECOMPUTE else p.op.phase for p in timeline.points
    ] or [PROGRAM]
    if timeline.points:
        values[timeline.at] = outside + timeline.peak_nbytes
    indices = highest(values, _POINTS)
    curve = tuple(values[i] for i in indices)
    at = ((max(timeline.at, 0) + 1) * len(indices) - 1) // len(values)  # of the peak's stretch
    return curve, at, _spans([phases[i] for i in indices], curve, at)


def _spans(phases: Sequence[CurvePass], curve: Sequence[int], at: int) -> tuple[PhaseSpan, ...]:
    """Return the passes of a curve's points in stretches, of which none but the peak's is short."""
    runs: list[tuple[CurvePass, int, int]] = []
    start = 0
    for phase, group in itertools.groupby(phases):
        stop = start + len(list(group))
        runs.append((phase, start, stop))
        start = stop
    least = _SHORTEST * len(phases)
    long = [r for r in runs if r[2] - r[1] >= least or r[1] <= at < r[2]]
    joined: list[tuple[CurvePass, int, int]] = []
    for phase, start, _ in long:
        if joined and joined[-1][0] == phase:
            continue
        joined.append((phase, start if joined else 0, 0))
    stops = [*(start for _, start, _ in joined[1:]), len(phases)]
    return tuple(
        PhaseSpan(phase, start, stop, max(curve[start:stop]))
        for (phase, start, _), stop in zip(joined, stops, strict=True)
    )

"""Thin the bytes over a program to a curve, and tell which pass each stretch of it is."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from jaxresid.inspector.jaxpr.phases import BACKWARD, PROGRAM, RECOMPUTE
from jaxresid.inspector.memory.liveness import Timeline
from jaxresid.results import CurvePass, Pass, PhaseSpan

_POINTS = 200
# A pass that is a smaller share of the curve, such as a cast between two others, is not shown.
_SHORTEST = 1 / 50


def curve_of(
    timeline: Timeline, outside: int
) -> tuple[tuple[int, ...], int, tuple[PhaseSpan, ...]]:
    """Return the bytes over a program, the index of the peak in them, and their passes.

    There are at most `_POINTS` of them; of each stretch of the program its highest point is kept.

    Args:
      timeline: the temporaries over the program.
      outside: the bytes of arguments and outputs.
    """
    values = [outside + p.nbytes for p in timeline.points] or [outside]
    phases = [_pass(p.op.phase) for p in timeline.points] or [PROGRAM]
    if timeline.points:
        values[timeline.at] = outside + timeline.peak_nbytes
    count = len(values)
    stretches = min(count, _POINTS)
    edges = [i * count // stretches for i in range(stretches + 1)]
    highest = [max(range(a, b), key=values.__getitem__) for a, b in itertools.pairwise(edges)]
    curve = tuple(values[i] for i in highest)
    at = next(i for i in range(stretches) if edges[i] <= max(timeline.at, 0) < edges[i + 1])
    return curve, at, _spans([phases[i] for i in highest], curve, at)


def _pass(phase: Pass) -> CurvePass:
    return BACKWARD if phase == RECOMPUTE else phase


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

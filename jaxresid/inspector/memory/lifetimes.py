"""Report the memory of a program over its run: each value, from when until when it is live."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, Protocol

from jaxresid.inspector.jaxpr.phases import PROGRAM
from jaxresid.inspector.memory.live_values import (
    Temporaries,
    held_inputs,
    held_outputs,
    outside_nbytes,
)
from jaxresid.inspector.memory.liveness import Span, timeline
from jaxresid.inspector.memory.lowered import Lowered
from jaxresid.inspector.program.ops import Op
from jaxresid.results import (
    NOWHERE,
    Lifetime,
    LifetimeReason,
    Lifetimes,
    LiveKind,
    LiveValue,
    Location,
    ProgramPoint,
    Source,
)

# So many values are kept at most; of more half as many of the biggest one by one.
_MOST: Final = 10_000
# Where the sums of the others are still too many, a program is thinned to one point for so many
# values: there are four kinds of temporaries, each of which may have another sum at each point.
_VALUES_PER_POINT: Final = 9


class Places(Protocol):
    """Tells where the ops of a program come from, as `peak.OpSources` does."""

    def source(self, op: Op) -> Source:
        """Return where an op comes from."""

    def stack(self, op: Op) -> tuple[Location, ...]:
        """Return the frames of an op, outermost first."""


def lifetimes(lowered: Lowered, places: Places, *, name: str = "", most: int = _MOST) -> Lifetimes:
    """Return the memory of a program over its run; the interval around its peak is not in it.

    Args:
      lowered: the program, with all of its layers.
      places: tells where the ops come from.
      name: what the program is, as `Lifetimes` has it.
      most: the greatest number of values to keep.
    """
    assert lowered.whole is None
    found, outside = timeline(lowered), outside_nbytes(lowered.program)
    points = [
        ProgramPoint(p.op.name, places.source(p.op), p.op.phase, outside + p.nbytes)
        for p in found.points
    ] or [ProgramPoint(None, NOWHERE, PROGRAM, outside)]
    values = [
        Lifetime(0, len(points), live, "constant" if live.kind == "constant" else "argument")
        for live in held_inputs(lowered.program)
    ]
    values += [
        Lifetime(0, len(points), live, "output", stack=places.stack(op) if op else ())
        for live, op in held_outputs(lowered.program, places.source)
    ]
    temporaries = Temporaries(lowered.program, found, places.source)
    values += [_lifetime(span, *temporaries.value(span), places) for span in found.spans()]
    made = Lifetimes(
        name, tuple(points), tuple(values), max(found.at, 0), outside + found.peak_nbytes
    )
    return _fewer(made, most)


def _lifetime(span: Span, live: LiveValue, maker: Op, places: Places) -> Lifetime:
    reader = span.reader
    is_unread = reader is span.buffer.op
    return Lifetime(
        span.start,
        span.stop,
        live,
        _reason(live.kind, is_unread=is_unread),
        None if reader is None or is_unread else places.source(reader),
        None if span.loop is None else places.source(span.loop),
        places.stack(maker),
    )


def _reason(kind: str, *, is_unread: bool) -> LifetimeReason:
    if is_unread:
        return "scratch"
    if kind == "residual":
        return "residual"
    return "gradient" if kind == "gradient" else "temporary"


def _fewer(made: Lifetimes, most: int) -> Lifetimes:
    """Return lifetimes with at most so many values, which add up to the same at each point."""
    if len(made.values) <= most:
        return made
    summed = _small_ones_summed(made, most // 2)
    if len(summed.values) <= most:
        return summed
    return _small_ones_summed(_thinned(made, most // _VALUES_PER_POINT), most // 2)


def _small_ones_summed(made: Lifetimes, biggest: int) -> Lifetimes:
    """Return lifetimes with so many of the biggest values, and the sums of the others by kind."""
    by_size = sorted(range(len(made.values)), key=lambda i: -made.values[i].live.nbytes)
    alone = set(by_size[:biggest])
    others: dict[tuple[LiveKind, LifetimeReason], list[Lifetime]] = {}
    for i, value in enumerate(made.values):
        if i not in alone:
            others.setdefault((value.live.kind, value.reason), []).append(value)
    sums = [
        Lifetime(start, stop, LiveValue(kind, nbytes, None, count), reason)
        for (kind, reason), each in others.items()
        for start, stop, nbytes, count in _stretches(each)
    ]
    return replace(made, values=(*(made.values[i] for i in sorted(alone)), *sums))


def _stretches(values: Sequence[Lifetime]) -> Iterator[tuple[int, int, int, int]]:
    """Yield each stretch in which the same bytes of values are live, with these and their number.

    Stretches in which none is live are left out.
    """
    changes: dict[int, tuple[int, int]] = {}
    for value in values:
        for at, sign in ((value.start, 1), (value.stop, -1)):
            nbytes, count = changes.get(at, (0, 0))
            changes[at] = nbytes + sign * value.live.nbytes, count + sign
    changing = sorted(at for at, change in changes.items() if change != (0, 0))
    nbytes, count = 0, 0
    for start, stop in itertools.pairwise(changing):
        nbytes, count = nbytes + changes[start][0], count + changes[start][1]
        if count:
            yield start, stop, nbytes, count


def _thinned(made: Lifetimes, most: int) -> Lifetimes:
    """Return lifetimes with at most so many points, of each stretch the one with most bytes."""
    nbytes = [point.nbytes for point in made.points]
    stretches = min(len(nbytes), most)
    edges = [i * len(nbytes) // stretches for i in range(stretches + 1)]
    kept = [max(range(a, b), key=nbytes.__getitem__) for a, b in itertools.pairwise(edges)]
    values = (
        replace(
            value,
            start=bisect.bisect_left(kept, value.start),
            stop=bisect.bisect_left(kept, value.stop),
        )
        for value in made.values
    )
    return replace(
        made,
        points=tuple(made.points[i] for i in kept),
        values=tuple(value for value in values if value.start < value.stop),
        at=kept.index(made.at),
    )

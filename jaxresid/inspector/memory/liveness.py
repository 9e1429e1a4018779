"""Work out how many bytes of a program are live after each op, and what they are at the peak.

The figure is an estimate of what XLA reports as argument + output + temporaries: arguments and
outputs count from the beginning to the end, as XLA's allocations for them do; temporaries from the
op that makes them to the last op that reads them. A loop counts its results, and the peak of one
trip of its body on top.
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from jaxresid.inspector.jaxpr.nesting import Nest
from jaxresid.inspector.memory.lowered import Lowered
from jaxresid.inspector.memory.profile import Profile
from jaxresid.inspector.memory.rules.kernels import Kernels, array_nbytes, kernels, overwritten
from jaxresid.inspector.memory.rules.op_kinds import is_elementwise, is_transfer
from jaxresid.inspector.memory.rules.overwriting import kept_operands
from jaxresid.inspector.program.build import Program
from jaxresid.inspector.program.ops import Block, Op, Value

# Temporaries this much smaller than the biggest change nothing wherever they are; and so many
# outputs are asked for room.
_SMALL = 1024
_TRIES = 64


@dataclass(slots=True, eq=False)
class Buffer:
    """A temporary that is live at some point; its bytes are 0 if it is in host memory."""

    op: Final[Op]
    value: Final[Value]
    nbytes: Final[int]


@dataclass(slots=True, eq=False)
class Point:
    """The bytes of temporaries that are live while an op runs."""

    op: Final[Op]
    nbytes: Final[int]


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """The stretch of a program that a buffer is live in.

    Attributes:
      start: the index of the first point that it is live at.
      stop: the index after the last.
      reader: the last op that reads it, the one that makes it where none does; None: it stays to
        the end of its block.
      loop: the innermost loop in whose body it is made; None: it is made in none.
    """

    buffer: Buffer
    start: int
    stop: int
    reader: Op | None
    loop: Op | None


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """The temporaries of a block over its ops.

    Attributes:
      points: the points in order; those of a loop's body are in the place of the loop, once.
      at: index of the peak; -1 without ops.
      host_nbytes: the most bytes that are live in host memory at once, wherever that is.
    """

    points: tuple[Point, ...]
    at: int
    peak_nbytes: int
    host_nbytes: int
    tracker: _Tracker

    def spans(self) -> Iterator[Span]:
        """Yield the spans of all buffers: first those of the block itself, then those of bodies."""
        yield from self.tracker.spans(len(self.points))

    @property
    def live(self) -> tuple[Span, ...]:
        """The spans of the buffers that are live at the peak."""
        return tuple(s for s in self.spans() if s.start <= self.at < s.stop)


def timeline(lowered: Lowered) -> Timeline:
    """Return the temporaries of a whole program over time, without its arguments and outputs."""
    taking_over = _taking_over(lowered.program, lowered.block)
    block = _fetching_first(lowered.block)
    copied = _copied(block, taking_over)
    in_place = frozenset(taking_over.keys() - copied)
    return _walk(block, lowered.profile, None, in_place, copied, is_body=False)


def _fetching_first(block: Kernels) -> Kernels:
    """Return a program's block with what it fetches of its arguments in host memory at the start.

    Such a fetch waits for nothing that is computed, and XLA begins with it wherever it is written:
    Adam's state fetched before the gradients and after them takes the same on an H100 and on a v5e
    (jaxlib 0.12.0.1; three steps, unrolled and scanned).
    """
    arguments = set(block.inputs)
    first: list[Op] = []
    later: list[Op] = []
    for op in block.ops:
        is_first = is_transfer(op) and arguments.issuperset(op.operands)
        is_first = is_first and all(v.memory == "device" for v in op.results)
        (first if is_first else later).append(op)
    return replace(block, ops=(*first, *later)) if first else block


def _taking_over(program: Program, block: Block) -> dict[Value, Value]:
    """Return the outputs that take over donated arguments, each with the argument.

    Their buffers are not the outputs' own before.
    """
    donated: dict[tuple[object, ...], deque[Value]] = {}
    for v, role in zip(program.block.inputs, program.inputs, strict=True):
        if role.donated:
            donated.setdefault((v.shape, v.dtype, v.memory), deque()).append(v)
    arguments: dict[Value, Value] = {}
    for v in block.outputs:
        alike = donated.get((v.shape, v.dtype, v.memory))
        if alike:
            arguments[v] = alike.popleft()
    return arguments


def _copied(block: Block, taking_over: Mapping[Value, Value]) -> frozenset[Value]:
    """Return the outputs that are made elsewhere and copied over the arguments that they take over.

    Such is a loop's stack, where the loop reads the argument, and not where it writes: a scan reads
    the cache of each layer, and writes another stack. So is what a kernel makes of neighbours: a
    donated `u + 0.1 * (jnp.roll(u, 1) - u)` takes as much as one that is not donated on an H100
    (jaxlib 0.10.2).
    """
    elsewhere = [
        (op, v, old)
        for op in block.ops
        if op.is_loop or is_elementwise(op)
        for v in op.results
        if (old := taking_over.get(v)) is not None
        and old in op.operands
        and old not in overwritten(op)
    ]
    # What becomes one kernel with others reads and writes the same elements.
    joined = kept_operands(block.ops) if elsewhere else {}
    return frozenset(v for op, v, old in elsewhere if op.is_loop or old not in joined.get(op, ()))


def _walk(
    block: Block,
    profile: Profile,
    nest: Nest | None,
    taking_over: frozenset[Value] = frozenset(),
    copied: frozenset[Value] = frozenset(),
    *,
    is_body: bool,
) -> Timeline:
    outside = set(block.inputs)
    if nest is None:
        outside.update(v for v in block.outputs if v not in copied)
    else:
        # What a trip stacks is written to the loop's result.
        outside.update(block.outputs[i] for i in nest.stacked)
    # What is stored outside this block (its inputs, and where its outputs go) costs nothing here.
    free = {v for v in outside if v.literal is None}
    last = _last_reads(block)
    if is_body or profile.reuses_output_buffers:
        overwritten_by = _written_in_place(block, last, free, taking_over)
    if not is_body and profile.reuses_output_buffers:
        free.update(_reusing_output_buffers(block, last, free, overwritten_by, taking_over))
    live: dict[Value, Buffer] = {}
    now, host = 0, 0
    points: list[Point] = []
    tracker = _Tracker()
    most_host = 0
    for i, op in enumerate(block.ops):
        results = op.results
        if not results and not op.bodies:
            continue
        dying = [v for v in op.operands if v in live and last[v] == i]
        if dying:
            for v in _reused(results, dying, op, free, live, block):
                tracker.release(live[v], len(points), op)
                now -= live.pop(v).nbytes
        for v in results:
            if v in free or not (nbytes := array_nbytes(v, block)):
                continue
            if v.memory == "host":
                host += nbytes
                live[v] = Buffer(op, v, 0)
                continue
            live[v] = Buffer(op, v, nbytes)
            tracker.allocate(live[v], len(points))
            now += nbytes
        inner: Timeline | None = None
        if op.bodies:
            inner = _body_timeline(op, profile)
            tracker.enter(op, inner, len(points))
            points += [Point(p.op, now + p.nbytes) for p in inner.points]
            most_host = max(most_host, host + inner.host_nbytes)
        points.append(Point(op, now))
        tracker.observe(now, inner, len(points) - 1)
        most_host = max(most_host, host)
        for v in dying:
            if v in live:
                tracker.release(live[v], len(points), op)
                now -= live.pop(v).nbytes
                host -= v.nbytes if v.memory == "host" else 0
        for v in results:
            if last.get(v, -1) <= i and v in live:
                tracker.release(live[v], len(points), op)
                now -= live.pop(v).nbytes
                host -= v.nbytes if v.memory == "host" else 0
    return Timeline(tuple(points), tracker.at, max(tracker.nbytes, 0), most_host, tracker)


class _Tracker:
    """The highest point so far, and at which points each buffer came and left."""

    def __init__(self) -> None:
        self.nbytes = -1
        self.at = -1
        self._allocated_at: dict[Buffer, int] = {}
        self._released: dict[Buffer, tuple[int, Op]] = {}
        self._inner: list[tuple[Op, Timeline, int]] = []

    def allocate(self, buffer: Buffer, start: int) -> None:
        self._allocated_at[buffer] = start

    def release(self, buffer: Buffer, stop: int, reader: Op) -> None:
        self._released[buffer] = stop, reader

    def enter(self, op: Op, inner: Timeline, start: int) -> None:
        self._inner.append((op, inner, start))

    def observe(self, nbytes: int, inner: Timeline | None, index: int) -> None:
        total = nbytes + (inner.peak_nbytes if inner else 0)
        if total <= self.nbytes:
            return
        self.nbytes = total
        self.at = index if inner is None else index - len(inner.points) + max(inner.at, 0)

    def spans(self, end: int) -> Iterator[Span]:
        """Yield the spans of the buffers; those that were not released are live to `end`."""
        for buffer, start in self._allocated_at.items():
            released = self._released.get(buffer)
            stop, reader = (end, None) if released is None else released
            yield Span(buffer, start, stop, reader, None)
        for op, inner, start in self._inner:
            around = op if op.is_loop else None
            for s in inner.spans():
                yield Span(s.buffer, start + s.start, start + s.stop, s.reader, s.loop or around)


def _body_timeline(op: Op, profile: Profile) -> Timeline:
    worst: Timeline | None = None
    for body in op.bodies:
        nest = op.nest if body is op.bodies[0] else None
        inner = _walk(kernels(body, nest, profile), profile, nest, is_body=True)
        if worst is None or inner.peak_nbytes > worst.peak_nbytes:
            worst = inner
    assert worst is not None
    return worst


def _last_reads(block: Block) -> dict[Value, int]:
    """Return, for each value, the index of the last op that needs it; outputs are to the end."""
    last: dict[Value, int] = {}
    for i, op in enumerate(block.ops):
        if op.results or op.bodies:
            for v in op.operands:
                last[v] = i
    for v in block.outputs:
        last[v] = len(block.ops)
    return last


def _written_in_place(
    block: Block,
    last: dict[Value, int],
    free: set[Value],
    taking_over: frozenset[Value],
) -> dict[Value, Value]:
    """Add what an output is written over to `free`; return what each is written over by."""
    overwritten_by: dict[Value, Value] = {}
    for i in range(len(block.ops) - 1, -1, -1):
        op = block.ops[i]
        outside = _by_nbytes(
            (v, v.nbytes) for v in op.results if v in free and v not in taking_over
        )
        if not outside:
            continue
        written_over = overwritten(op)
        for old in op.operands:
            if old in free or last.get(old) != i or old not in written_over:
                continue
            same_size = outside.get(old.nbytes)
            if same_size:
                free.add(old)
                overwritten_by[old] = same_size.popleft()
    return overwritten_by


def _by_nbytes(sizes: Iterable[tuple[Value, int]]) -> dict[int, deque[Value]]:
    by_nbytes: dict[int, deque[Value]] = {}
    for v, nbytes in sizes:
        by_nbytes.setdefault(nbytes, deque()).append(v)
    return by_nbytes


def _reusing_output_buffers(
    block: Block,
    last: dict[Value, int],
    free: set[Value],
    overwritten_by: dict[Value, Value],
    taking_over: frozenset[Value],
) -> Iterator[Value]:
    """Yield the temporaries that fit into the buffer of an output written after their last use.

    XLA's buffer assignment tries the biggest first, each in the smallest buffer that has room.
    """
    made_at: dict[Value, int] = {}
    for i, op in enumerate(block.ops):
        made_at.update(dict.fromkeys(op.results, i))
    output_buffers: dict[int, list[_OutputBuffer]] = {}
    written_at: dict[Value, int] = {}
    for v, i in made_at.items():  # from the first of those written over each other
        if v in overwritten_by:
            written_at[overwritten_by[v]] = written_at.get(v, i)
        elif v in free and v not in taking_over and v.memory == "device":
            output_buffers.setdefault(v.nbytes, []).append(_OutputBuffer(written_at.get(v, i)))
    for same_size in output_buffers.values():
        same_size.sort(key=lambda host: -host.written_at)
    temporaries = sorted(
        ((v, i) for v, i in made_at.items() if v not in free and v.memory == "device"),
        key=lambda g: (-g[0].nbytes, g[1]),
    )
    sizes = sorted(output_buffers)
    for v, begin in temporaries:
        if v.nbytes * _SMALL < temporaries[0][0].nbytes:
            break
        end = last.get(v, begin)
        for nbytes in sizes[bisect.bisect_left(sizes, v.nbytes) :]:
            if _reserve_output_buffer(output_buffers[nbytes], begin, end):
                yield v
                break


def _reserve_output_buffer(output_buffers: Sequence[_OutputBuffer], begin: int, end: int) -> bool:
    """Take room in one of these buffers, written last first; return whether there was any."""
    for output_buffer in output_buffers[:_TRIES]:
        if output_buffer.written_at <= end:
            return False
        if output_buffer.reserve(begin, end):
            return True
    return False


class _OutputBuffer:
    """An output's buffer before the output is written, and when it is lent."""

    def __init__(self, written_at: int) -> None:
        self.written_at = written_at
        self._begins: list[int] = []
        self._ends: list[int] = []

    def reserve(self, begin: int, end: int) -> bool:
        """Lend it from `begin` to `end` if it is free then, and return whether it was."""
        at = bisect.bisect_left(self._begins, begin)
        if at < len(self._begins) and self._begins[at] <= end:
            return False
        if at and self._ends[at - 1] >= begin:
            return False
        self._begins.insert(at, begin)
        self._ends.insert(at, end)
        return True


def _reused(
    results: Iterable[Value],
    dying: list[Value],
    op: Op,
    free: set[Value],
    live: dict[Value, Buffer],
    block: Block,
) -> list[Value]:
    written_over = overwritten(op)
    left = _by_nbytes((v, live[v].nbytes) for v in dying if v in written_over)
    taken = []
    for v in results:
        same_size = left.get(array_nbytes(v, block)) if left and v not in free else None
        if same_size:
            taken.append(same_size.popleft())
    return taken

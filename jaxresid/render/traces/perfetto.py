"""Lifetimes as a trace for Perfetto: one track for each kind of value, and the live bytes.

The axis is the program, not time: an op takes a microsecond, so that op number 120 is at 120 µs.
"""

from __future__ import annotations

import gzip
import heapq
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from jaxresid.base.text.safe_text import visible
from jaxresid.base.text.units import format_bytes
from jaxresid.render.traces.wire import data, integer
from jaxresid.results import (
    Aval,
    Comparison,
    Lifetime,
    Lifetimes,
    LiveValue,
    Plan,
    ProgramPoint,
    Report,
    Source,
)

# Nanoseconds that stand for an op.
_OP: Final = 1000
_SEQUENCE: Final = 1
# Track events, by the numbers of their types.
_BEGIN, _END, _INSTANT, _COUNTER = 1, 2, 3, 4
_BY_RANK: Final = 3
_BYTES: Final = 3
# So many values that are there from the beginning to the end are named, of each kind.
_NAMED: Final = 30

# Reasons in the order of their tracks, each with the name of the track.
_TRACKS: Final = {
    "residual": "residuals: wait for the backward pass",
    "gradient": "gradients: wait for the optimizer",
    "temporary": "temporaries",
    "scratch": "scratch",
    "output": "outputs",
    "argument": "arguments",
    "constant": "constants",
}

# Reasons of values that are there from the beginning to the end.
_HELD: Final = frozenset({"output", "argument", "constant"})

_Details = list[tuple[str, str | int]]


@dataclass(slots=True)
class _Trace:
    """The packets of a trace.

    Attributes:
      tracks: the descriptors of tracks.
      events: each with its time and its order among those of the same time.
      numbers: makes the numbers of tracks.
    """

    tracks: list[bytes] = field(default_factory=list)
    events: list[tuple[int, int, bytes]] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def track(
        self, name: str, *, parent: int = 0, rank: int = 0, says: str = "", more: bytes = b""
    ) -> int:
        """Add a track and return its number.

        Args:
          name: its name.
          parent: the number of the track that it is below; 0: none.
          rank: where it is among those below the same.
          says: its description.
          more: further fields of its descriptor.
        """
        number = next(self.numbers)
        fields = [integer(1, number), data(2, visible(name)), integer(11, _BY_RANK), more]
        if parent:
            fields.append(integer(5, parent))
        fields.append(integer(12, rank))
        if says:
            fields.append(data(14, visible(says)))
        self.tracks.append(data(60, b"".join(fields)))
        return number

    def slice(self, track: int, start: int, stop: int, name: str, details: _Details) -> None:
        """Add a slice from one op to the beginning of another."""
        said = data(23, visible(name)) + b"".join(_annotation(*each) for each in details)
        self._event(start, 2, _BEGIN, track, said)
        self._event(stop, 1, _END, track, b"")

    def instant(self, track: int, at: int, name: str, details: _Details) -> None:
        """Add a mark at an op."""
        said = data(23, visible(name)) + b"".join(_annotation(*each) for each in details)
        self._event(at, 3, _INSTANT, track, said)

    def count(self, track: int, at: int, value: int) -> None:
        """Add the value of a counter from an op on."""
        self._event(at, 0, _COUNTER, track, integer(30, value))

    def _event(self, at: int, order: int, kind: int, track: int, more: bytes) -> None:
        event = integer(9, kind) + integer(11, track) + more
        self.events.append((at, order, integer(8, at * _OP) + data(11, event)))

    def written(self) -> bytes:
        """Return the whole trace."""
        self.events.sort(key=lambda event: event[:2])
        packets = itertools.chain(self.tracks, (packet for *_, packet in self.events))
        return b"".join(data(1, packet + integer(10, _SEQUENCE)) for packet in packets)


def trace(result: Report | Comparison | Plan) -> bytes:
    """Return when each value is live, in all programs of a result, as a trace, compressed.

    Raises:
      ValueError: it has no lifetimes.
    """
    if not result.lifetimes:
        raise ValueError("there are no lifetimes in it; ask for them with lifetimes=True")
    return trace_of(f"{result.target.name} on {result.place.name}", result.lifetimes)


def trace_of(title: str, programs: Sequence[Lifetimes]) -> bytes:
    """Return programs over their runs as a trace, compressed.

    Args:
      title: what they are programs of.
      programs: the programs, each of which becomes a group of tracks.
    """
    trace = _Trace()
    for rank, program in enumerate(programs):
        _add(trace, title, program, rank)
    return gzip.compress(trace.written(), mtime=0)


def _add(trace: _Trace, title: str, program: Lifetimes, rank: int) -> None:
    what = f"{title}, {program.name}" if program.name else title
    root = trace.track(
        f"{what}: peak {format_bytes(program.nbytes)} (1 µs = 1 op)",
        rank=rank,
        says="Estimated memory of the program, op by op, before it has run. The axis is the order"
        " of the ops and no time: op number 120 is at 120 µs. Loops' bodies are there once.",
    )
    end = len(program.points)
    counter = trace.track("live bytes", parent=root, rank=0, more=data(8, integer(3, _BYTES)))
    before = None
    for i, point in enumerate(program.points):
        if point.nbytes != before:
            trace.count(counter, i, point.nbytes)
            before = point.nbytes
    trace.count(counter, end, before or 0)
    passes = trace.track("passes", parent=root, rank=1)
    start = 0
    for phase, each in itertools.groupby(program.points, key=lambda point: point.phase):
        stop = start + len(list(each))
        trace.slice(passes, start, stop, phase, [])
        start = stop
    ops = trace.track("ops", parent=root, rank=2)
    for i, point in enumerate(program.points):
        details: _Details = [("live bytes", point.nbytes)]
        details += _place("at", point.source)
        trace.slice(ops, i, i + 1, _op_name(point), details)
    at = program.points[program.at]
    trace.instant(
        passes,
        program.at,
        f"peak: {format_bytes(program.nbytes)}",
        [("op", _op_name(at)), *_place("at", at.source), *_largest(program)],
    )
    for number, (reason, name) in enumerate(_TRACKS.items(), start=3):
        values = [value for value in program.values if value.reason == reason]
        slices = _added_up(values) if reason in _HELD else map(_slice, values)
        _add_lanes(trace, root, number, name, list(slices))


@dataclass(frozen=True, slots=True)
class _Slice:
    """A stretch of the program, with what to say of it."""

    start: int
    stop: int
    name: str
    details: _Details


def _add_lanes(trace: _Trace, parent: int, rank: int, name: str, slices: Sequence[_Slice]) -> None:
    """Add slices, each to the first track of those called `name` that is free.

    Viewers show tracks of one name as one.
    """
    lanes: list[int] = []
    free: list[int] = []
    busy: list[tuple[int, int]] = []
    for each in sorted(slices, key=lambda each: each.start):
        while busy and busy[0][0] <= each.start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if not free:
            heapq.heappush(free, len(lanes))
            lanes.append(trace.track(name, parent=parent, rank=rank))
        lane = heapq.heappop(free)
        heapq.heappush(busy, (each.stop, lane))
        trace.slice(lanes[lane], each.start, each.stop, each.name, each.details)


def _slice(value: Lifetime) -> _Slice:
    live = value.live
    details: _Details = [("bytes", live.nbytes), ("kind", live.kind), ("why", value.reason)]
    if live.aval is not None:
        details.append(("array", _array(live.aval)))
    details += _place("made at", live.source)
    if value.stack:
        details.append(
            ("frames", " > ".join(f"{f.function} {f.file}:{f.line}" for f in value.stack))
        )
    if live.phase:
        details.append(("made in", live.phase))
    details += _place("last read at", value.read_at)
    details += _place("in each trip of the loop at", value.inside)
    return _Slice(
        value.start, value.stop, f"{_value_name(live)} {format_bytes(live.nbytes)}", details
    )


def _added_up(values: Sequence[Lifetime]) -> Iterator[_Slice]:
    """Yield what is there from the beginning to the end as one slice for each kind and stretch."""
    groups: dict[tuple[str, int, int], list[LiveValue]] = {}
    for value in values:
        groups.setdefault((value.live.kind, value.start, value.stop), []).append(value.live)
    for (kind, start, stop), each in groups.items():
        nbytes, count = sum(v.nbytes for v in each), sum(v.count for v in each)
        each.sort(key=lambda v: -v.nbytes)
        details: _Details = [("bytes", nbytes), ("count", count)]
        details += [(v.path or _value_name(v), v.nbytes) for v in each[:_NAMED]]
        if left := each[_NAMED:]:
            details.append((f"{len(left)} more", sum(v.nbytes for v in left)))
        yield _Slice(start, stop, f"{kind} ×{count} {format_bytes(nbytes)}", details)


def _largest(program: Lifetimes) -> _Details:
    """Return the bytes that are live at the peak by kind, and the largest values."""
    live = [each.live for each in program.live_at(program.at)]
    by_kind: dict[str, int] = {}
    for value in live:
        by_kind[value.kind] = by_kind.get(value.kind, 0) + value.nbytes
    kinds = sorted(by_kind.items(), key=lambda each: -each[1])
    return [
        *((f"{kind} bytes", nbytes) for kind, nbytes in kinds),
        *((f"largest {i}", f"{_value_name(v)} {format_bytes(v.nbytes)}") for i, v in _first(live)),
    ]


def _first(live: Sequence[LiveValue]) -> Iterator[tuple[int, LiveValue]]:
    return enumerate(itertools.islice(live, 10), start=1)


def _value_name(live: LiveValue) -> str:
    if live.aval is None:
        return f"{live.kind} ×{live.count}" if live.count > 1 else live.kind
    made = live.path or live.primitive or live.kind
    place = live.source.location
    where = f" {place.file.rpartition('/')[2]}:{place.line}" if place and not live.path else ""
    return f"{made}{where} {_array(live.aval)}"


def _array(aval: Aval) -> str:
    return f"{aval.dtype}[{','.join(map(str, aval.shape))}]"


def _op_name(point: ProgramPoint) -> str:
    return point.primitive or "no ops"


def _place(name: str, source: Source | None) -> _Details:
    """Return where something is, as far as that is known."""
    if source is None:
        return []
    found: _Details = []
    if (line := source.location) is not None:
        found.append((name, f"{line.file}:{line.line} in {line.function}: {line.code}"))
    if (line := source.library) is not None:
        found.append((f"{name}, in the library", f"{line.file}:{line.line} in {line.function}"))
    if source.scope:
        found.append((f"{name}, module", source.scope))
    return found


def _annotation(name: str, value: str | int) -> bytes:
    held = integer(4, value) if isinstance(value, int) else data(6, visible(value))
    return data(4, data(10, visible(name)) + held)

"""Read HLO modules from their protocol buffers (`xla/service/hlo.proto`)."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from jaxresid.base.home import FOLDER
from jaxresid.xla.hlo.wire import Message
from jaxresid.xla.job import CollectiveOp, Line

# PrimitiveType of xla/xla_data.proto -> its name in HLO text and its bits.
_DTYPES = {
    **{1: ("pred", 8), 30: ("s1", 8), 26: ("s2", 8), 21: ("s4", 4), 2: ("s8", 8), 3: ("s16", 16)},
    **{4: ("s32", 32), 5: ("s64", 64), 31: ("u1", 8), 27: ("u2", 8), 22: ("u4", 4), 6: ("u8", 8)},
    **{7: ("u16", 16), 8: ("u32", 32), 9: ("u64", 64), 10: ("f16", 16), 11: ("f32", 32)},
    **{16: ("bf16", 16), 12: ("f64", 64), 19: ("f8e5m2", 8), 28: ("f8e4m3", 8)},
    **{20: ("f8e4m3fn", 8), 23: ("f8e4m3b11fnuz", 8), 29: ("f8e3m4", 8), 24: ("f8e5m2fnuz", 8)},
    **{25: ("f8e4m3fnuz", 8), 32: ("f4e2m1fn", 4), 33: ("f8e8m0fnu", 8), 15: ("c64", 64)},
    **{18: ("c128", 128)},
}
# The bits of an element of each dtype.
BITS = dict(_DTYPES.values())
_SHAPE_TEXT = re.compile(r"(\w+)\[([\d,]*)\]")

COLLECTIVES = (
    *("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all"),
    *("collective-permute", "collective-broadcast"),
)
# Instructions whose computations run as part of the schedule.
CALLERS = ("while", "call", "conditional", "async-start")
# Lines of a stack that are kept: few programs have half as many between the user's line and JAX.
_DEEPEST = 100
_WAITING = ("async-update", "async-done")


@dataclass(frozen=True, slots=True)
class Shape:
    """An array's shape, or a tuple's by its `elements`; a token is an empty tuple.

    `memory` is XLA's memory space: 0 the device's, 5 the host's, on TPUs 1 the one on chip.
    """

    dtype: str = ""
    dims: tuple[int, ...] = ()
    bits: int = 0
    memory: int = 0
    elements: tuple[Shape, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes without padding; of a tuple all elements together."""
        if self.dtype:
            return (math.prod(self.dims) * self.bits + 7) // 8
        return sum(element.nbytes for element in self.elements)

    def at(self, index: tuple[int, ...]) -> Shape:
        """Return the shape of an element of a nested tuple, by the index at each depth."""
        shape = self
        for i in index:
            shape = shape.elements[i]
        return shape

    def __str__(self) -> str:
        if self.dtype:
            return f"{self.dtype}[{','.join(map(str, self.dims))}]"
        return f"({', '.join(map(str, self.elements))})"


def shape_of(text: str) -> Shape | None:
    """Return the shape that a text such as `f32[64,512]` is; None if it is none of an array."""
    found = _SHAPE_TEXT.match(text)
    if found is None or found[1] not in BITS:
        return None
    try:
        dims = tuple(int(n) for n in found[2].split(",") if n)
    except ValueError:  # more digits than Python reads
        return None
    return Shape(dtype=found[1], dims=dims, bits=BITS[found[1]])


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction of a computation.

    Attributes:
      id: its id.
      opcode: its opcode, `dot`.
      shape: the shape of its result.
      operands: the ids of the instructions that it reads.
      called: the ids of the computations that it calls.
      index: the element of a get-tuple-element, the number of a parameter.
      op_name: the op name in its metadata; '' where it has none.
      file: the file in its metadata; '' where it has none.
      line: the line in its metadata; 0 where it has none.
      config: the backend's config, JSON.
      literal: the integer of a scalar constant; None for others.
      direction: the direction of a comparison, `LT`.
      name: its name, `fusion.2`.
      callers: the lines of the calls that led to that line, the nearest first.
    """

    id: int
    opcode: str
    shape: Shape
    operands: tuple[int, ...] = ()
    called: tuple[int, ...] = ()
    index: int = 0
    op_name: str = ""
    file: str = ""
    line: int = 0
    config: bytes = b""
    literal: int | None = None
    direction: str = ""
    name: str = ""
    callers: tuple[Line, ...] = ()


@dataclass(frozen=True)
class HloModule:
    """An HLO module.

    Attributes:
      computations: the instructions of each computation by its id, in the order that they run in.
      roots: the id of each computation's root instruction, by the computation's id.
      entry: the id of the entry computation.
      frames: the lines of each stack, innermost first; metadata counts them from 1.
    """

    computations: Mapping[int, tuple[Instruction, ...]]
    roots: Mapping[int, int]
    entry: int
    frames: tuple[tuple[Line, ...], ...] = ()

    @cached_property
    def instructions(self) -> Mapping[int, Instruction]:
        """The instructions by id."""
        return {i.id: i for body in self.computations.values() for i in body}

    @cached_property
    def home(self) -> Mapping[int, int]:
        """The computation that each instruction is in, by ids."""
        return {i.id: name for name, body in self.computations.items() for i in body}

    @cached_property
    def callers(self) -> Mapping[int, Instruction]:
        """The last instruction that calls each computation; few in optimized HLO have several.

        What only waits for an asynchronous one names it too, and does not call it.
        """
        calling = (i for i in self.instructions.values() if i.opcode not in _WAITING)
        return {name: i for i in calling for name in i.called}


def module(data: bytes) -> HloModule:
    """Read an HloModuleProto.

    Raises:
      ValueError: the bytes are not one.
    """
    message = Message.read(data)
    frames = _frames(message.message(17))
    order = {
        entry.integer(1): entry.message(2).integers(1) for entry in message.message(7).messages(1)
    }
    computations, roots = {}, {}
    for proto in message.messages(3):
        body = {i.id: i for i in (_instruction(m, frames) for m in proto.messages(2))}
        name = proto.integer(5)
        ids = [i for i in order.get(name, ()) if i in body]
        computations[name] = tuple(body[i] for i in (ids if len(ids) == len(body) else body))
        roots[name] = proto.integer(6)
    entry = message.integer(6)
    if entry not in computations:
        raise ValueError("no entry computation")
    return HloModule(computations, roots, entry, frames)


def output_dims(data: bytes) -> tuple[tuple[int, ...], ...] | None:
    """Return the dimensions of each output of a serialized module; None where it cannot be read.

    After partitioning these are those on one device.
    """
    try:
        result = Message.read(data).message(4).message(2)
        if not result.fields:
            return None
        shape = _shape(result)
    except ValueError:
        return None
    return tuple(_dims(shape))


def _dims(shape: Shape) -> Iterator[tuple[int, ...]]:
    if shape.dtype:
        yield shape.dims
    for element in shape.elements:
        yield from _dims(element)


def _instruction(message: Message, frames: tuple[tuple[Line, ...], ...]) -> Instruction:
    metadata = message.message(7)
    file, line = metadata.text(3), metadata.integer(4)
    frame = metadata.integer(15)
    stack = frames[frame - 1] if 0 < frame <= len(frames) else ()
    callers: tuple[Line, ...] = ()
    if stack and (not file or (file, line) == stack[0]):
        (file, line), callers = stack[0], stack[1:]
    opcode = message.text(2)
    return Instruction(
        id=message.integer(35),
        opcode=opcode,
        shape=_shape(message.message(3)),
        operands=message.integers(36),
        called=message.integers(38),
        index=message.integer(9 if opcode == "parameter" else 13),
        op_name=metadata.text(2),
        file=file,
        line=line,
        config=message.data(43),
        literal=_literal(message.message(8)) if opcode == "constant" else None,
        direction=message.text(63),
        name=message.text(1),
        callers=callers,
    )


def _shape(message: Message) -> Shape:
    dtype, bits = _DTYPES.get(message.integer(2), ("", 0))
    layout = message.message(5)
    return Shape(
        dtype=dtype,
        dims=message.integers(3) if dtype else (),
        bits=layout.integer(7) or bits,
        memory=layout.integer(8),
        elements=tuple(_shape(element) for element in message.messages(4)),
    )


def _literal(message: Message) -> int | None:
    """Return the integer of a scalar LiteralProto (s32s, s64s, u32s, u64s), if it is one."""
    values = [n for number in (4, 5, 6, 7) for n in message.integers(number)]
    if len(values) != 1 or message.message(1).integers(3):
        return None
    return values[0] - (1 << 64) if values[0] >> 63 else values[0]


def _frames(message: Message) -> tuple[tuple[Line, ...], ...]:
    """Return the stack of each frame of a StackFrameIndexProto; its ids count from 1."""
    files = [
        name.decode("utf-8", "replace")
        for name in message.fields.get(1, ())
        if isinstance(name, bytes)
    ]
    places = [(m.integer(1), m.integer(3)) for m in message.messages(3)]
    lines: list[tuple[Line, int]] = []
    for frame in message.messages(4):
        at = frame.integer(1)
        file, line = places[at - 1] if 0 < at <= len(places) else (0, 0)
        place = (files[file - 1], line) if 0 < file <= len(files) else ("", 0)
        lines.append((place, frame.integer(2)))
    return stacks(lines)


def stacks(frames: Sequence[tuple[Line, int]]) -> tuple[tuple[Line, ...], ...]:
    """Return the stack of each frame, innermost first, down to the call of the user's function.

    Args:
      frames: the line of each frame and the number of its caller, from 1; what is no earlier
        frame is none.
    """
    found: list[tuple[Line, ...]] = []
    for place, caller in frames:
        above = found[caller - 1] if 0 < caller <= len(found) else ()
        found.append(
            (place, *above[: _DEEPEST - 1]) if not place[0].startswith(FOLDER) else (place,)
        )
    return tuple(found)


def collectives(data: bytes) -> tuple[CollectiveOp, ...]:
    """Return the collectives that a serialized module runs; none where it cannot be read.

    A collective in two halves (`all-gather-start`, `all-gather-done`; or wrapped in an
    asynchronous computation) counts once, and so does one inside a fusion. Its bytes are those of
    its results, without the operands that a `-start` passes on.
    """
    try:
        read = module(data)
        found: dict[str, list[CollectiveOp]] = {}
        for op in _collectives(read, read.entry, 1, True, ()):
            found.setdefault(op.opcode, []).append(op)
    except (ValueError, IndexError, KeyError, RecursionError):
        return ()
    return tuple(
        CollectiveOp(
            opcode,
            sum(op.count for op in ops),
            sum(op.nbytes for op in ops),
            all(op.exact for op in ops),
        )
        for opcode, ops in sorted(found.items())
    )


def _collectives(
    read: HloModule, computation: int, trips: int, exact: bool, within: tuple[int, ...]
) -> Iterator[CollectiveOp]:
    if computation in within:
        return
    for i in read.computations[computation]:
        opcode = i.opcode.removesuffix("-start")
        if opcode in COLLECTIVES:
            yield CollectiveOp(opcode, trips, trips * _result_nbytes(read, i), exact)
            continue
        inner, known = trips, exact
        if i.opcode == "while":
            n = known_trips(read, i)
            inner, known = trips * (1 if n is None else n), exact and n is not None
        elif i.opcode == "conditional":
            known = False
        elif i.opcode not in ("call", "fusion", "async-start"):
            continue
        for name in i.called:
            yield from _collectives(read, name, inner, known, (*within, computation))


def _result_nbytes(read: HloModule, i: Instruction) -> int:
    """Return the bytes of a collective's results.

    All-gather-start and collective-permute-start return their operands, their results, and perhaps
    context; all-reduce-start its results.
    """
    if i.opcode.endswith("-start") and not i.opcode.startswith("all-reduce"):
        return i.shape.elements[1].nbytes
    return i.shape.nbytes


def known_trips(read: HloModule, loop: Instruction) -> int | None:
    """Return how often a while loop's body runs; None where it is not known.

    The number is the one that the compiler noted, or comes from a condition `i < n` and a body that
    adds one to `i`.
    """
    try:
        config = json.loads(loop.config or b"{}")
        return int(config["known_trip_count"]["n"])
    except (ValueError, KeyError, TypeError):
        return _counted_trips(read, loop)


def _counted_trips(read: HloModule, loop: Instruction) -> int | None:
    """Return the trips of a loop that counts an integer up to a constant; None for other loops.

    libtpu notes no trips; loops of a scan still count that way.
    """
    for name in loop.called:
        test = read.instructions[read.roots[name]]
        if test.opcode == "compare" and test.direction == "LT":
            break
    else:
        return None
    body = next(other for other in loop.called if other != name)
    counter, index = origin(read, test.operands[0])
    bound, _ = origin(read, test.operands[1])
    if counter.opcode != "parameter" or len(index) != 1:
        return None
    start, _ = origin(read, loop.operands[0], index)
    step, _ = origin(read, read.roots[body], index)
    if step.opcode != "add":
        return None
    terms = [origin(read, term)[0] for term in step.operands]
    steps = [term.literal for term in terms if term.literal is not None]
    counts = [term for term in terms if term.opcode == "parameter"]
    if steps != [1] or not counts or start.literal is None or bound.literal is None:
        return None
    return max(bound.literal - start.literal, 0)


def origin(
    read: HloModule, at: int, index: tuple[int, ...] = ()
) -> tuple[Instruction, tuple[int, ...]]:
    """Return the instruction and the element that a value comes from.

    It is looked for through tuples, copies and loops that hand the value on unchanged.
    """
    seen = set()
    while (at, index) not in seen:
        seen.add((at, index))
        i = read.instructions[at]
        if i.opcode == "get-tuple-element":
            at, index = i.operands[0], (i.index, *index)
        elif i.opcode == "tuple" and index:
            at, index = i.operands[index[0]], index[1:]
        elif i.opcode in _SAME:
            at = i.operands[0]
        elif i.opcode == "copy-start" and index:
            at, index = i.operands[0], index[1:]
        elif i.opcode == "copy-done":
            at, index = i.operands[0], (0, *index)
        elif i.opcode == "while" and index and _unchanged(read, i, index):
            at = i.operands[0]
        elif i.opcode == "parameter" and index:
            loop = read.callers.get(read.home[at])
            if loop is None or loop.opcode != "while" or not _unchanged(read, loop, index):
                return i, index
            at = loop.operands[0]
        else:
            return i, index
    return read.instructions[at], index


_SAME = ("copy", "bitcast", "optimization-barrier")


def _unchanged(read: HloModule, loop: Instruction, index: tuple[int, ...]) -> bool:
    """Return whether a loop's body returns an element of its parameter as it got it.

    The body is the computation whose root is no single truth value.
    """
    for name in loop.called:
        at, path = read.roots[name], index
        if not read.instructions[at].shape.dtype:
            seen = set()
            while (i := read.instructions[at]).opcode in ("tuple", "get-tuple-element", *_SAME):
                if (at, path) in seen:
                    return False
                seen.add((at, path))
                if i.opcode == "tuple":
                    if not path:
                        return False
                    at, path = i.operands[path[0]], path[1:]
                elif i.opcode == "get-tuple-element":
                    at, path = i.operands[0], (i.index, *path)
                else:
                    at = i.operands[0]
            return i.opcode == "parameter" and path == index
    return False

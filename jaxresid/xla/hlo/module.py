"""Read HLO modules from their protocol buffers (`xla/service/hlo.proto`)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from jaxresid.base.home import FOLDER
from jaxresid.xla.hlo.wire import Message
from jaxresid.xla.job import Line

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
    array = _SHAPE_TEXT.match(text)
    if array is None or array[1] not in BITS:
        return None
    try:
        dims = tuple(int(n) for n in array[2].split(",") if n)
    except ValueError:  # more digits than Python reads
        return None
    return Shape(dtype=array[1], dims=dims, bits=BITS[array[1]])


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction of a computation.

    Attributes:
      index: the element of a get-tuple-element, the number of a parameter.
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
        return {i.id: i for body in self.computations.values() for i in body}

    @cached_property
    def home(self) -> Mapping[int, int]:
        return {i.id: name for name, body in self.computations.items() for i in body}

    @cached_property
    def callers(self) -> Mapping[int, Instruction]:
        """The last instruction that calls each computation; few in optimized HLO have several.

        What only waits for an asynchronous one names it too, and does not call it.
        """
        calling = (i for i in self.instructions.values() if i.opcode not in _WAITING)
        return {name: i for i in calling for name in i.called}


def module(data: bytes) -> HloModule:
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
    by_frame: list[tuple[Line, ...]] = []
    for place, caller in frames:
        above = by_frame[caller - 1] if 0 < caller <= len(by_frame) else ()
        by_frame.append(
            (place, *above[: _DEEPEST - 1]) if not place[0].startswith(FOLDER) else (place,)
        )
    return tuple(by_frame)


def origin(
    hlo: HloModule, at: int, index: tuple[int, ...] = ()
) -> tuple[Instruction, tuple[int, ...]]:
    """Return the instruction and the element that a value comes from.

    It is looked for through tuples, copies and loops that hand the value on unchanged.
    """
    seen = set()
    while (at, index) not in seen:
        seen.add((at, index))
        i = hlo.instructions[at]
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
        elif i.opcode == "while" and index and _unchanged(hlo, i, index):
            at = i.operands[0]
        elif i.opcode == "parameter" and index:
            loop = hlo.callers.get(hlo.home[at])
            if loop is None or loop.opcode != "while" or not _unchanged(hlo, loop, index):
                return i, index
            at = loop.operands[0]
        else:
            return i, index
    return hlo.instructions[at], index


_SAME = ("copy", "bitcast", "optimization-barrier")


def _unchanged(hlo: HloModule, loop: Instruction, index: tuple[int, ...]) -> bool:
    """Return whether a loop's body returns an element of its parameter as it got it.

    The body is the computation whose root is no single truth value.
    """
    for name in loop.called:
        at, path = hlo.roots[name], index
        if not hlo.instructions[at].shape.dtype:
            seen = set()
            while (i := hlo.instructions[at]).opcode in ("tuple", "get-tuple-element", *_SAME):
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

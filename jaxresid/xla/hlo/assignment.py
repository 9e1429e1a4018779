"""Read which memory XLA gives to which value: a buffer assignment, as proto or as text."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from jaxresid.results import BufferKind
from jaxresid.xla.hlo.module import HloModule
from jaxresid.xla.hlo.wire import Message

_ALLOCATION = re.compile(r"allocation (\d{1,12}): size (\d{1,20})(.*?):?$")
_COLOR = re.compile(r"\bcolor (\d{1,4})")
_VALUE = re.compile(
    r"\s*value: <(\d{1,12}) ([\w.-]+)(?:\{([\d,]*)\})?(?: \(phi\))? @\d+>"
    r" \(size=(\d{1,20}),offset=(\d{1,20})\)"
)


@dataclass(frozen=True, slots=True)
class Allocation:
    """A piece of memory.

    Attributes:
      color: XLA's memory space, 0 the device's.
      is_thread_local: whether it is of one thread, on a CPU or within a kernel.
      offsets: where in it each of its values lies, by the values' numbers.
    """

    index: int
    nbytes: int
    color: int
    kind: BufferKind
    is_thread_local: bool
    offsets: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LogicalValue:
    """A value that lies in memory; its bytes have its padding."""

    nbytes: int
    instruction: int
    index: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Assignment:
    """Pieces of memory, and the values in them by their numbers."""

    allocations: tuple[Allocation, ...]
    values: dict[int, LogicalValue]


def assignment_of_proto(data: bytes) -> Assignment:
    message = Message.read(data)
    values = {}
    for logical in message.messages(1):
        location = logical.message(3)
        values[logical.integer(1)] = LogicalValue(
            logical.integer(2), location.integer(4), location.integers(3)
        )
    return Assignment(tuple(map(_allocation, message.messages(3))), values)


def _allocation(proto: Message) -> Allocation:
    is_argument, is_output = bool(proto.integer(5)), bool(proto.integer(7))
    return Allocation(
        index=proto.integer(1),
        nbytes=proto.integer(2),
        color=proto.integer(8),
        kind=_kind(is_argument, bool(proto.integer(12)), is_output),
        is_thread_local=bool(proto.integer(3)),
        offsets={part.integer(1): part.integer(2) for part in proto.messages(9)},
    )


def assignment_of_text(text: str, module: HloModule) -> Assignment:
    if not text.lstrip().startswith("BufferAssignment:"):
        raise ValueError("no buffer assignment")
    ids = {i.name: i.id for i in module.instructions.values()}
    allocations: list[Allocation] = []
    values = {}
    for line in text.splitlines():
        if row := _ALLOCATION.match(line):
            allocations.append(_allocation_of(row))
        elif allocations and (row := _VALUE.match(line)) and row[2] in ids:
            index = tuple(int(n) for n in (row[3] or "").split(",") if n)
            number = int(row[1])
            values[number] = LogicalValue(int(row[4]), ids[row[2]], index)
            allocations[-1].offsets[number] = int(row[5])
    return Assignment(tuple(allocations), values)


def _allocation_of(row: re.Match[str]) -> Allocation:
    words = row[3]
    color = _COLOR.search(words)
    is_argument, is_output = ", parameter " in words, "maybe-live-out" in words
    return Allocation(
        index=int(row[1]),
        nbytes=int(row[2]),
        color=0 if color is None else int(color[1]),
        kind=_kind(is_argument, ", constant" in words, is_output),
        is_thread_local="thread-local" in words,
    )


def _kind(is_argument: bool, is_constant: bool, is_output: bool) -> BufferKind:
    if is_argument:
        return "argument"
    if is_constant:
        return "constant"
    return "output" if is_output else "temporary"

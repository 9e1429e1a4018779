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
      index: its number.
      nbytes: its bytes.
      color: XLA's memory space, 0 the device's.
      kind: `argument`, `constant`, `output`, `temporary`.
      is_thread_local: whether it is of one thread, on a CPU or within a kernel.
      is_given_away: whether it is an argument's that an output takes over.
      offsets: where in it each of its values lies, by the values' numbers.
    """

    index: int
    nbytes: int
    color: int
    kind: BufferKind
    is_thread_local: bool
    is_given_away: bool = False
    offsets: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LogicalValue:
    """A value that lies in memory.

    Attributes:
      nbytes: its bytes, padding included.
      instruction: the id of the instruction that defines it.
      index: which element of that instruction's result it is.
    """

    nbytes: int
    instruction: int
    index: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Assignment:
    """A buffer assignment.

    Attributes:
      allocations: the pieces of memory.
      values: the values by their numbers.
    """

    allocations: tuple[Allocation, ...]
    values: dict[int, LogicalValue]


def assignment_of_proto(data: bytes) -> Assignment:
    """Read a BufferAssignmentProto.

    Raises:
      ValueError: The bytes are not one.
    """
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
        is_given_away=is_argument and is_output,
        offsets={part.integer(1): part.integer(2) for part in proto.messages(9)},
    )


def assignment_of_text(text: str, module: HloModule) -> Assignment:
    """Read the text that `xla_dump_to` writes beside a module's.

    Args:
      text: the text.
      module: the module that it is of, whose instructions it names.

    Raises:
      ValueError: It is no buffer assignment.
    """
    if not text.lstrip().startswith("BufferAssignment:"):
        raise ValueError("no buffer assignment")
    ids = {i.name: i.id for i in module.instructions.values()}
    allocations: list[Allocation] = []
    values = {}
    for line in text.splitlines():
        if found := _ALLOCATION.match(line):
            allocations.append(_allocation_of(found))
        elif allocations and (found := _VALUE.match(line)) and found[2] in ids:
            index = tuple(int(n) for n in (found[3] or "").split(",") if n)
            number = int(found[1])
            values[number] = LogicalValue(int(found[4]), ids[found[2]], index)
            allocations[-1].offsets[number] = int(found[5])
    return Assignment(tuple(allocations), values)


def _allocation_of(found: re.Match[str]) -> Allocation:
    said = found[3]
    color = _COLOR.search(said)
    is_argument, is_output = ", parameter " in said, "maybe-live-out" in said
    return Allocation(
        index=int(found[1]),
        nbytes=int(found[2]),
        color=0 if color is None else int(color[1]),
        kind=_kind(is_argument, ", constant" in said, is_output),
        is_thread_local="thread-local" in said,
        is_given_away=is_argument and is_output,
    )


def _kind(is_argument: bool, is_constant: bool, is_output: bool) -> BufferKind:
    if is_argument:
        return "argument"
    if is_constant:
        return "constant"
    return "output" if is_output else "temporary"

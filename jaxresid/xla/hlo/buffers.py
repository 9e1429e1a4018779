"""Find the buffers that are live at XLA's peak, from its buffer assignment."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from jaxresid.results import BufferKind
from jaxresid.xla.hlo import module as hlo
from jaxresid.xla.hlo.assignment import Allocation, Assignment, assignment_of_proto
from jaxresid.xla.job import PeakBuffer

MAX_BUFFERS = 512

# XLA's memory spaces: `HostMemorySpace` of layouts, and on TPUs what is on the chip.
_HOST = 5
_DEVICE = {"tpu": (0,), "cuda": (0, 1), "cpu": (0,)}


# An instruction and an index into its shape.
_Element = tuple[int, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class LiveBuffers:
    """The memory of one executable on one device.

    Attributes:
      buffers: the buffers live at the peak, biggest first, at most `MAX_BUFFERS`.
      nbytes: the bytes of all that are live at the peak on the device; None: not known.
      allocated_nbytes: the bytes of all allocations on the device: arguments, outputs, temporaries,
        constants, and the gaps between them; what XLA compares with the device's memory.
      notes: why there is nothing.
    """

    buffers: tuple[PeakBuffer, ...] = ()
    nbytes: int | None = None
    allocated_nbytes: int | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _LogicalBuffer:
    """A logical buffer: where it is, from when to when, and what makes it."""

    slot: tuple[int, int]
    nbytes: int
    start: int
    end: int
    kind: BufferKind
    memory: str
    instruction: int
    index: tuple[int, ...]


def buffers(module: bytes, assignment: bytes, platform: str) -> LiveBuffers:
    """Return the buffers that are live at the peak; only a note where they cannot be read.

    This never raises. XLA says where each value lies and since jaxlib 0.10 which it thinks are live
    at the peak, but that leaves out the bodies of loops. So the lifetimes are followed here: from
    the instruction that makes a value to the last that reads it, in the order of the schedule,
    loops in place.

    Args:
      module: an HloModuleProto, optimized and scheduled.
      assignment: its BufferAssignmentProto, empty where there is none.
      platform: `cpu`, `cuda`, `tpu`.
    """
    if not assignment:
        return LiveBuffers(notes=("this compiler does not report its buffers",))
    try:
        return live_buffers(hlo.module(module), assignment_of_proto(assignment), platform)
    except (ValueError, IndexError, KeyError, StopIteration, RecursionError):
        return LiveBuffers(notes=("the buffers of this compiler could not be read",))


def live_buffers(read: hlo.HloModule, assignment: Assignment, platform: str) -> LiveBuffers:
    """Return the buffers that are live at the peak.

    Args:
      read: the module, optimized and scheduled.
      assignment: which memory its values have.
      platform: `cpu`, `cuda`, `tpu`.

    Raises:
      ValueError: the two do not belong together.
      IndexError: as `ValueError`.
      KeyError: as `ValueError`.
      StopIteration: as `ValueError`.
    """
    device = _DEVICE[platform]
    memories = {**dict.fromkeys(device, "device"), _HOST: "host"}
    values = _values(read, assignment, memories)
    allocated = sum(each.nbytes for each in device_allocations(assignment, platform))
    if not values:
        return LiveBuffers()
    live = _held_at(values, _peak(values))
    makers = _Producers(read)
    found = tuple(_buffer(read, makers, value) for value in live if value.nbytes)
    nbytes = sum(value.nbytes for value in live if value.memory == "device")
    return LiveBuffers(found[:MAX_BUFFERS], nbytes, allocated)


def device_allocations(assignment: Assignment, platform: str) -> tuple[Allocation, ...]:
    """Return the pieces of device memory of a program; those of single threads are none."""
    return tuple(
        each
        for each in assignment.allocations
        if each.color in _DEVICE[platform] and not each.is_thread_local
    )


def _held_at(values: list[_LogicalBuffer], now: int) -> list[_LogicalBuffer]:
    """Return the values held at a time, biggest first.

    Of the values that share a slot it is the last one made. The memory of an output is held from
    the start, even while others use it.
    """
    slots: dict[tuple[int, int], _LogicalBuffer] = {}
    outputs: dict[int, _LogicalBuffer] = {}
    for value in values:
        if value.kind == "output":
            known = outputs.get(value.slot[0])
            if known is None or (value.end, value.nbytes) > (known.end, known.nbytes):
                outputs[value.slot[0]] = value
        elif value.start <= now <= value.end:
            known = slots.get(value.slot)
            if known is None or (value.nbytes, value.start) > (known.nbytes, known.start):
                slots[value.slot] = value
    held = [*slots.values(), *outputs.values()]
    return sorted(held, key=lambda value: (-value.nbytes, value.slot))


def _values(
    read: hlo.HloModule, assignment: Assignment, memories: Mapping[int, str]
) -> list[_LogicalBuffer]:
    """Return the arrays of an assignment that are in one of the memories."""
    places = _places(assignment, memories)
    defined = frozenset((value.instruction, value.index) for value in assignment.values.values())
    lifetimes = _Lifetimes(read, defined)
    found = []
    for number, value in assignment.values.items():
        at, index = value.instruction, value.index
        place = places.get(number)
        if place is None or at not in lifetimes.made:
            continue
        if not read.instructions[at].shape.at(index).dtype:
            continue
        slot, kind, memory = place
        start, end = lifetimes.made[at], lifetimes.last[at, index]
        if kind in ("argument", "constant"):
            start, end = 0, lifetimes.end
        found.append(_LogicalBuffer(slot, value.nbytes, start, end, kind, memory, at, index))
    return found


def _places(
    assignment: Assignment, memories: Mapping[int, str]
) -> dict[int, tuple[tuple[int, int], BufferKind, str]]:
    """Map each logical buffer to its allocation with its offset there, its kind, and its memory."""
    return {
        number: ((each.index, offset), each.kind, memories[each.color])
        for each in assignment.allocations
        if not each.is_thread_local and each.color in memories
        for number, offset in each.offsets.items()
    }


class _Lifetimes:
    """The times from when to when values are held.

    They are on one clock for all computations of the schedule: those of loops and calls run where
    they are called.

    Attributes:
      made: for each instruction the time when its result is there.
      last: for the place that a value is defined at the time when it is last needed.
      end: the time when the program is over.
    """

    def __init__(self, read: hlo.HloModule, defined: frozenset[_Element]) -> None:
        self.made: dict[int, int] = {}
        self.last: dict[_Element, int] = defaultdict(int)
        self._read = read
        self._defined = defined
        self._begun: dict[int, int] = {}
        self._entered: set[int] = set()
        self._closed: dict[int, int] = {}
        self.end = self._run(read.entry, 0) + 1
        self._closed[read.entry] = self.end
        for computation, closed in self._closed.items():
            for i in read.computations[computation]:
                self.last[i.id, ()] = max(self.last[i.id, ()], self.made[i.id])
                if i.opcode not in _PASSING:
                    for operand in i.operands:
                        self._need(operand, self._begun[i.id])
            self._need(read.roots[computation], closed)
        for at, index in defined:
            self.last[at, index] = max(self.last[at, index], self.made.get(at, 0))

    def _run(self, computation: int, now: int) -> int:
        if computation in self._entered:
            raise ValueError(
                "a computation that is called twice has no single place in the schedule"
            )
        self._entered.add(computation)
        for i in self._read.computations[computation]:
            now += 1
            self._begun[i.id] = now
            if i.opcode in hlo.CALLERS:
                for name in sorted(i.called, key=lambda name: not self._is_condition(i, name)):
                    now = self._run(name, now)
                now += 1
            self.made[i.id] = now
        self._closed[computation] = now
        return now

    def _is_condition(self, i: hlo.Instruction, computation: int) -> bool:
        root = self._read.instructions[self._read.roots[computation]]
        return i.opcode == "while" and bool(root.shape.dtype)

    def _need(self, at: int, now: int) -> None:
        for index in _leaves(self._read.instructions[at].shape):
            place = self._definition((at, index))
            self.last[place] = max(self.last[place], now)

    def _definition(self, place: _Element) -> _Element:
        """Return the place where the value at a place was made.

        The body's root needs to the end what a loop hands through unchanged.
        """
        seen = set()
        while place not in self._defined and place not in seen:
            seen.add(place)
            (at, index), i = place, self._read.instructions[place[0]]
            caller = self._read.callers.get(self._read.home[at])
            if i.opcode == "get-tuple-element":
                place = i.operands[0], (i.index, *index)
            elif i.opcode == "tuple" and index:
                place = i.operands[index[0]], index[1:]
            elif i.opcode == "copy-done":
                place = i.operands[0], (0, *index)
            elif i.opcode == "copy-start" and index[:1] == (1,):
                place = i.operands[0], index[1:]
            elif i.opcode == "async-done":
                place = i.operands[0], (1, *index)
            elif i.opcode == "async-start" and index[:1] == (0,) and len(index) > 1:
                place = i.operands[index[1]], index[2:]
            elif i.opcode == "async-start" and index[:1] == (1,):
                place = self._read.roots[i.called[0]], index[1:]
            elif i.opcode in ("bitcast", "optimization-barrier", "while"):
                place = i.operands[0], index
            elif i.opcode == "call":
                place = self._read.roots[i.called[0]], index
            elif i.opcode == "parameter" and caller is not None and caller.id in self.made:
                place = caller.operands[_operand(caller, i, self._read.home[at])], index
            else:
                break
        return place


def _operand(caller: hlo.Instruction, parameter: hlo.Instruction, computation: int) -> int:
    """Return which operand of a caller a parameter of its computation stands for."""
    if caller.opcode == "while":
        return 0
    if caller.opcode == "conditional":
        return 1 + caller.called.index(computation)
    return parameter.index


# They name what their operands are; what is read is read by others.
_PASSING = ("get-tuple-element", "tuple", "bitcast", "optimization-barrier")


def _leaves(shape: hlo.Shape) -> Iterator[tuple[int, ...]]:
    """Yield the index of every array in a shape."""
    if shape.dtype:
        yield ()
    for n, element in enumerate(shape.elements):
        yield from ((n, *index) for index in _leaves(element))


def _peak(values: list[_LogicalBuffer]) -> int:
    """Return the time when the most bytes of device memory are live.

    What shares a slot counts once. The memory of outputs is there all the time.
    """
    events = []
    for value in values:
        if value.memory == "device" and value.nbytes and value.kind != "output":
            events += [(value.start, 0, value), (value.end, 1, value)]
    events.sort(key=lambda event: event[:2])
    held: dict[tuple[int, int], list[int]] = defaultdict(list)
    total, most, at = 0, -1, 0
    for now, ends, value in events:
        slot = held[value.slot]
        total -= max(slot, default=0)
        slot.remove(value.nbytes) if ends else slot.append(value.nbytes)
        total += max(slot, default=0)
        if total > most:
            most, at = total, now
    return at


def _buffer(read: hlo.HloModule, makers: _Producers, value: _LogicalBuffer) -> PeakBuffer:
    made = read.instructions[value.instruction]
    maker = made if value.kind == "argument" else makers.of(value.instruction, value.index)
    passed_on = maker.opcode in ("parameter", "constant")
    return PeakBuffer(
        kind=value.kind,
        nbytes=value.nbytes,
        shape=str(made.shape.at(value.index)),
        opcode=made.opcode if passed_on else maker.opcode,
        op_name=maker.op_name,
        file=maker.file,
        line=maker.line,
        memory=value.memory,
        callers=maker.callers,
    )


class _Producers:
    """The instructions that compute what a value holds.

    For what a loop stacks up that is the one in its body, for a fusion the one inside it.
    """

    def __init__(self, read: hlo.HloModule) -> None:
        self._read = read

    def of(self, at: int, index: tuple[int, ...]) -> hlo.Instruction:
        seen = set()
        named = self._read.instructions[at]
        while True:
            i, index = hlo.origin(self._read, at, index)
            at = i.id
            if i.op_name:
                named = i
            if (at, index) in seen:
                return named
            seen.add((at, index))
            onward = self._onward(i, index)
            if onward is None:
                return i if i.op_name else named
            at, index = onward

    def _onward(
        self, i: hlo.Instruction, index: tuple[int, ...]
    ) -> tuple[int, tuple[int, ...]] | None:
        if i.opcode == "while":
            return self._body_root(i), index
        if i.opcode in ("fusion", "call", "conditional"):
            return self._read.roots[i.called[0]], index
        if i.opcode == "async-done":
            return i.operands[0], (1, *index)
        if i.opcode == "async-start" and index[:1] == (1,):
            return self._read.roots[i.called[0]], index[1:]
        if i.opcode == "dynamic-update-slice":
            return i.operands[1], ()
        if i.opcode == "convert" and not i.op_name.endswith("convert_element_type"):
            return i.operands[0], ()  # XLA's own: bf16 is f32 on CPUs, f32 bf16 before a TPU's dot
        if i.opcode == "parameter":
            caller = self._read.callers.get(self._read.home[i.id])
            if caller is not None and caller.opcode == "while":
                return self._body_root(caller), index
            if caller is not None and caller.opcode in ("fusion", "call", "async-start"):
                return caller.operands[i.index], index
        return None

    def _body_root(self, loop: hlo.Instruction) -> int:
        roots = [self._read.roots[name] for name in loop.called]
        return next((r for r in roots if not self._read.instructions[r].shape.dtype), roots[0])

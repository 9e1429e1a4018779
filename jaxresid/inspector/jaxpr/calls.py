"""Find where the calls of a function begin in a run of eqns.

Within a call a function's code runs forwards, except in its own loops. So where the position in the
code goes back without a loop, a new call begins.
"""

from __future__ import annotations

import dis
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from types import CodeType

from jaxresid.inspector.jaxpr.frames import Frame

# Instructions that the next one is never reached from.
_LEAVING = frozenset(
    {
        *("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"),
        *("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"),
    }
)


@dataclass(frozen=True, slots=True)
class CallMark:
    """An eqn of a run: its frames from the called function on, and its primitive."""

    frames: tuple[Frame, ...]
    primitive: str


def call_starts(marks: Sequence[CallMark]) -> list[int]:
    """Return the indices in a run of eqns at which a call begins.

    Where the called function itself goes back, a call begins for certain. Where only what it calls
    goes back, or starts as the first call did, that may also be the work of a function that calls
    its argument several times, such as `jax.tree.map`; so then all calls must leave the same eqns.
    """
    certain, likely = [0], [0]
    for i in range(1, len(marks)):
        back = _went_back(marks[i - 1].frames, marks[i].frames)
        if back == 0:
            certain.append(i)
        again = marks[i] == marks[0] and not any(_loops_at(f) for f in marks[i].frames)
        if back is not None or again:
            likely.append(i)
    pieces = [
        marks[start:stop] for start, stop in zip(likely, [*likely[1:], len(marks)], strict=True)
    ]
    return likely if all(piece == pieces[0] for piece in pieces) else certain


@dataclass(frozen=True, slots=True)
class LoopRun:
    """One run of a loop of a function that holds no other.

    Attributes:
      cuts: the index of the eqn at which each of its iterations begins, and that after the last.
      is_one_call: whether an iteration is one call and nothing else.
    """

    start: int
    cuts: tuple[int, ...]
    is_one_call: bool


def iterations(marks: Sequence[CallMark]) -> list[LoopRun]:
    """Return the runs of a function's innermost loops, of the eqns of one call of it, in order."""
    loops = _flow(marks[0].frames[0].code).loops
    offsets = [mark.frames[0].lasti for mark in marks]
    runs = []

    def add(start: int, cuts: Sequence[int], stop: int) -> None:
        if not cuts:
            return
        is_one_call = len(set(offsets[cuts[0] : stop])) == 1
        if is_one_call:
            called = [CallMark(m.frames[1:], m.primitive) for m in marks[cuts[0] : stop]]
            cuts = [cuts[0] + at for at in call_starts(called)]
        runs.append(LoopRun(start, (*cuts, stop), is_one_call))

    for start, end in loops:
        if any(start <= s and e <= end and (s, e) != (start, end) for s, e in loops):
            continue
        cuts: list[int] = []
        for i, at in enumerate(offsets):
            if not start <= at <= end:
                add(start, cuts, i)
                cuts = []
            elif not cuts or at < offsets[i - 1]:
                cuts.append(i)
        add(start, cuts, len(offsets))
    return runs


def _went_back(before: Sequence[Frame], now: Sequence[Frame]) -> int | None:
    """Return the index of the frame whose code went back with no loop to take it there.

    None if there is no such frame.
    """
    for i, (a, b) in enumerate(zip(before, now, strict=False)):
        if a.code != b.code:
            return None
        if a.lasti != b.lasti:
            flow = _flow(a.code)
            is_loop = any(s <= b.lasti and a.lasti <= e for s, e in flow.loops)
            is_known = a.lasti in flow.offsets and not is_loop
            return i if b.lasti < a.lasti and is_known else None
        if _loops_at(a):
            return None
    return None


def _loops_at(frame: Frame) -> bool:
    return any(start <= frame.lasti <= end for start, end in _flow(frame.code).loops)


@dataclass(frozen=True, slots=True)
class _ControlFlow:
    """The instructions that a function reaches while it raises nothing.

    Attributes:
      loops: the jumps backwards, as the offsets that they lead to and the offsets that they are at.
        Handlers of exceptions, which come after all other code, jump backwards too, but not to run
        code again.
    """

    offsets: frozenset[int]
    loops: tuple[tuple[int, int], ...]


@functools.cache
def _flow(code: CodeType) -> _ControlFlow:
    listed = list(dis.get_instructions(code))
    number = {instruction.offset: i for i, instruction in enumerate(listed)}
    jumps = {*dis.hasjrel, *dis.hasjabs}
    offsets: set[int] = set()
    loops = []
    ahead = [0]
    while ahead:
        i = ahead.pop()
        if i == len(listed) or listed[i].offset in offsets:
            continue
        instruction = listed[i]
        offsets.add(instruction.offset)
        if instruction.opcode in jumps:
            ahead.append(number[instruction.argval])
            if instruction.argval <= instruction.offset:
                loops.append((instruction.argval, instruction.offset))
        if instruction.opname not in _LEAVING:
            ahead.append(i + 1)
    return _ControlFlow(frozenset(offsets), tuple(loops))

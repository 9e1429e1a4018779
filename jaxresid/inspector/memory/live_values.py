"""Tell what is live: the arguments and outputs of a program, and what its temporaries are."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from jaxresid.inspector.jaxpr.phases import BACKWARD, FORWARD, RECOMPUTE, UPDATE
from jaxresid.inspector.jaxpr.primitives import TRANSPARENT
from jaxresid.inspector.memory.liveness import Span, Timeline
from jaxresid.inspector.program.avals import aval_of_value
from jaxresid.inspector.program.build import Program
from jaxresid.inspector.program.ops import Block, Op, Value
from jaxresid.results import NOWHERE, LiveKind, LiveValue, Source


def outside_nbytes(program: Program, memory: str = "device") -> int:
    """Return the bytes of arguments and outputs, those that are both once."""
    return (
        arguments_nbytes(program, memory)
        + outputs_nbytes(program, memory)
        - aliased_nbytes(program, memory)
    )


def arguments_nbytes(program: Program, memory: str = "device") -> int:
    """Return the bytes of the arguments."""
    return sum(v.nbytes for v in program.block.inputs if v.memory == memory)


def outputs_nbytes(program: Program, memory: str = "device") -> int:
    """Return the bytes of the outputs.

    Every output is a buffer of its own, even one that is returned twice.
    """
    return sum(v.size * v.itemsize for v in program.block.outputs if v.memory == memory)


def aliased_nbytes(program: Program, memory: str = "device") -> int:
    """Return the bytes of donated arguments that an output of their shape and type takes over."""
    donated: dict[tuple[tuple[int, ...], str], int] = {}
    for v, role in zip(program.block.inputs, program.inputs, strict=True):
        if role.donated and v.memory == memory:
            donated[v.shape, v.dtype] = donated.get((v.shape, v.dtype), 0) + 1
    total = 0
    for v in program.block.outputs:
        if donated.get((v.shape, v.dtype), 0) > 0 and v.memory == memory:
            donated[v.shape, v.dtype] -= 1
            total += v.size * v.itemsize
    return total


def held_inputs(program: Program) -> tuple[LiveValue, ...]:
    """Return the arguments and constants, which are live from the beginning to the end.

    Donated arguments and the outputs that take them over are the same bytes, named once, as
    outputs; what is left of the donated ones is one value.
    """
    each: list[LiveValue] = []
    donated_nbytes = 0
    for v, role in zip(program.block.inputs, program.inputs, strict=True):
        if v.memory != "device":
            continue
        if role.donated:
            donated_nbytes += v.nbytes
        elif v.nbytes:
            each.append(LiveValue(role.kind, v.nbytes, aval_of_value(v), path=role.path))
    if left := donated_nbytes - aliased_nbytes(program):
        each.append(LiveValue("argument", left, None))
    return tuple(each)


def held_outputs(
    program: Program, source_of: Callable[[Op], Source]
) -> tuple[tuple[LiveValue, Op | None], ...]:
    """Return the outputs, whose buffers are there from the beginning to the end.

    Args:
      program: the program.
      source_of: returns where an op comes from.

    Returns:
      Each output with the op that makes it; None for one that is an argument.
    """
    each: list[tuple[LiveValue, Op | None]] = []
    made = {v: op for op in program.block.ops for v in op.results}
    for v, role in zip(program.block.outputs, program.outputs, strict=True):
        if v.memory != "device" or not v.size * v.itemsize:
            continue
        # The state of a program without a gradient is the argument, which stays where it is.
        op = None if role.kind == "state" else made.get(v)
        phase = op.phase if op else None
        op = _maker(op, v) if op else None
        live = LiveValue(
            role.kind,
            v.size * v.itemsize,
            aval_of_value(v),
            primitive=op.name if op else None,
            path=role.path,
            source=source_of(op) if op else NOWHERE,
            phase=phase,
        )
        each.append((live, op))
    return tuple(each)


class Temporaries:
    """Tells what the temporaries of a program are to a reader.

    Args:
      program: the program.
      timeline: its temporaries over time.
      source_of: returns where an op comes from.
    """

    def __init__(
        self, program: Program, timeline: Timeline, source_of: Callable[[Op], Source]
    ) -> None:
        self._kept, self._source_of = _kept(program), source_of
        behind = (p.op.phase in (RECOMPUTE, BACKWARD) for p in timeline.points)
        # How many points of the backward pass there are before each point.
        self._behind = list(itertools.accumulate(behind, initial=0))

    def value(self, span: Span) -> tuple[LiveValue, Op]:
        """Return the temporary that a buffer holds, and the op that makes it.

        What the forward pass made and what is live in the backward pass is kept for it, even if the
        residual is only computed from it.
        """
        buffer = span.buffer
        crosses = self._behind[span.start] < self._behind[span.stop]
        kind: LiveKind = "residual" if crosses and buffer.op.phase == FORWARD else "temporary"
        for name, values in self._kept.items():
            if buffer.value in values:
                kind = name
        op = _maker(buffer.op, buffer.value)
        live = LiveValue(
            kind,
            buffer.nbytes,
            aval_of_value(buffer.value),
            primitive=op.name,
            source=self._source_of(op),
            phase=buffer.op.phase,
        )
        return live, op


def _maker(op: Op, value: Value) -> Op:
    """Return the op that makes a value; for a loop's result, the one in its body."""
    while op.bodies and value in op.results:
        out = op.bodies[0].outputs[op.results.index(value)]
        inside = next((o for o in op.bodies[0].ops if out in o.results), None)
        if inside is None:
            break
        op, value = inside, out
    return op


def _kept(program: Program) -> dict[LiveKind, set[Value]]:
    """Return the temporaries that one pass makes and another reads."""
    residuals, gradients = set(program.residuals), set[Value]()
    _add_kept(program.block, residuals, gradients)
    return {"residual": residuals, "gradient": gradients}


def _add_kept(block: Block, residuals: set[Value], gradients: set[Value]) -> None:
    ahead = {v for op in block.ops if op.phase == FORWARD for v in op.results}
    behind = {v for op in block.ops if op.phase == BACKWARD for v in op.results}
    for op in block.ops:
        if op.phase in (RECOMPUTE, BACKWARD):
            residuals.update(ahead.intersection(op.operands))
        elif op.phase == UPDATE:
            gradients.update(behind.intersection(op.operands))
        for body in op.bodies:
            _add_kept(body, residuals, gradients)
    # A buffer goes by the value that was first in it, before it was transposed or reshaped.
    for op in reversed(block.ops):
        if op.name in TRANSPARENT:
            for kept in (residuals, gradients):
                if op.results[0] in kept:
                    kept.add(op.operands[0])

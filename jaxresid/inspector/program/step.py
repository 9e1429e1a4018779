"""Build the program of a training step, with the role of its inputs and the pass of each op."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jaxresid.inspector.jaxpr.phases import BACKWARD, FORWARD, PROGRAM, RECOMPUTE, UPDATE
from jaxresid.inspector.program.build import Program, program_of_jaxpr
from jaxresid.inspector.program.ops import Block, Op, Value
from jaxresid.inspector.program.reading import JaxprReader
from jaxresid.inspector.program.step_roles import Roles, roles
from jaxresid.inspector.trace.step import StepTrace
from jaxresid.results import Pass


def step_program(
    step: StepTrace, known_roles: Roles | None = None, reader: JaxprReader | None = None
) -> Program:
    """Return the program of a training step.

    Args:
      known_roles: its roles, where they are known of the step with other checkpoints: these change
        what is computed again, and not which values go where.
    """
    inputs, outputs = known_roles or roles(step)
    program = program_of_jaxpr(
        step.jaxpr,
        inputs,
        outputs,
        reader=reader,
        sharding=step.sharding,
        trips=step.trips,
    )
    if not step.holds_gradient:
        return replace(program, block=_as_one(program.block))
    # What no derivative has a part in is `forward` where a forward pass reads it and it needs no
    # gradient (preparing a batch, running a frozen model), otherwise `update`. So is a loop around
    # both passes, for example over microbatches; the ops of its body are settled one by one.
    return replace(program, block=_infer_phases(program.block, frozenset(), frozenset()))


def _as_one(block: Block) -> Block:
    """Return a block of a program without a gradient, which is one pass whatever its tags."""
    ops = (replace(op, phase=PROGRAM, bodies=tuple(map(_as_one, op.bodies))) for op in block.ops)
    return replace(block, ops=tuple(ops))


def _infer_phases(block: Block, behind: frozenset[Value], ahead: frozenset[Value]) -> Block:
    """Return the block with the phases of its untagged ops settled.

    Args:
      behind: the inputs that a gradient has a part in.
      ahead: the outputs that a forward pass reads.
    """
    tagged = [op.phase for op in block.ops]
    fed = _fed(block, tagged, ahead)
    after = set(behind)
    ops = []
    for op, tag in zip(block.ops, tagged, strict=True):
        phase = tag
        is_after = phase in (RECOMPUTE, BACKWARD) or not after.isdisjoint(op.operands)
        bodies = tuple(
            _infer_phases(body, _entering(op, body, after), _leaving(op, body, fed))
            for body in op.bodies
        )
        if phase == UPDATE:
            is_after = is_after or _holds(bodies, RECOMPUTE, BACKWARD)
            phase = UPDATE if is_after or fed.isdisjoint(op.results) else FORWARD
        if is_after:
            after.update(op.results)
        ops.append(op if phase == tag and not bodies else replace(op, phase=phase, bodies=bodies))
    return replace(block, ops=tuple(ops))


def _fed(block: Block, phases: Sequence[str], ahead: frozenset[Value]) -> set[Value]:
    """Return the values that reach a forward op without any derivative on the way.

    Outputs that are `ahead` count as forward ops do.
    """
    fed = set(ahead)
    for op, phase in zip(reversed(block.ops), reversed(phases), strict=True):
        reaches = phase == UPDATE and not fed.isdisjoint(op.results)
        if reaches or phase == FORWARD or _holds(op.bodies, FORWARD):
            fed.update(op.operands)
    return fed


def _holds(bodies: Sequence[Block], *phases: Pass) -> bool:
    return any(
        op.phase in phases or _holds(op.bodies, *phases) for body in bodies for op in body.ops
    )


def _entering(op: Op, body: Block, after: set[Value]) -> frozenset[Value]:
    """Return the body's inputs that a gradient has a part in; for a loop, in its first trip."""
    if op.nest is not None:
        outside = [op.operands[i] for i in op.nest.operands]
        if len(outside) != len(body.inputs):  # the condition of a while loop
            return frozenset()
    else:
        outside = list(op.operands[1:])  # of a cond, behind its index
    pairs = zip(body.inputs, outside, strict=False)
    return frozenset(inner for inner, outer in pairs if outer in after)


def _leaving(op: Op, body: Block, fed: set[Value]) -> frozenset[Value]:
    if len(body.outputs) != len(op.results):  # the condition of a while loop
        return frozenset()
    pairs = zip(body.outputs, op.results, strict=True)
    return frozenset(inner for inner, outer in pairs if outer in fed)

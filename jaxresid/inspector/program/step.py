"""A training step as a program: who its inputs are, which pass each op is of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jaxresid import jax_compat
from jaxresid.inspector.jaxpr.phases import BACKWARD, FORWARD, RECOMPUTE, UPDATE, phase_of
from jaxresid.inspector.program.build import Program, whole
from jaxresid.inspector.program.ops import Block, Op, Value
from jaxresid.inspector.program.step_roles import roles
from jaxresid.inspector.trace.step import StepTrace


def step_program(step: StepTrace) -> Program:
    """The program of a step."""
    inputs, outputs = roles(step)
    return settled(whole(step.jaxpr, inputs, outputs, sharding=step.sharding))


def settled(program: Program) -> Program:
    """The program with what no derivative has a part in told apart: `forward` where a forward pass
    reads it and it needs no gradient (preparing a batch, running a frozen model), else `update`.
    So is a loop around both passes, over microbatches say; the ops of its body are told apart.
    """
    block = program.block
    return replace(program, block=_settled(block, frozenset(), frozenset()))


def _settled(block: Block, behind: frozenset[Value], ahead: frozenset[Value]) -> Block:
    """The block; `behind` are inputs that a gradient has a part in, `ahead` are outputs that a
    forward pass reads.
    """
    tagged = [phase_of(f"{op.context.tags}/{jax_compat.name_stack(op.eqn)}") for op in block.ops]
    fed = _fed(block, tagged, ahead)
    after = set(behind)
    ops = []
    for op, tag in zip(block.ops, tagged, strict=True):
        phase = tag
        is_after = phase in (RECOMPUTE, BACKWARD) or any(v in after for v in op.operands)
        bodies = tuple(
            _settled(body, _entering(op, body, after), _leaving(op, body, fed))
            for body in op.bodies
        )
        if phase == UPDATE:
            is_after = is_after or _holds_backward(bodies)
            phase = FORWARD if not is_after and any(v in fed for v in op.results) else UPDATE
        if is_after:
            after.update(op.results)
        ops.append(replace(op, phase=phase, bodies=bodies))
    return replace(block, ops=tuple(ops))


def _fed(block: Block, phases: Sequence[str], ahead: frozenset[Value]) -> set[Value]:
    """What reaches a forward op, or an output that is `ahead`, with no derivative on the way."""
    fed = set(ahead)
    for op, phase in zip(reversed(block.ops), reversed(phases), strict=True):
        reaches = phase == UPDATE and any(v in fed for v in op.results)
        if reaches or phase == FORWARD or _holds_forward(op):
            fed.update(op.operands)
    return fed


def _holds_forward(op: Op) -> bool:
    """Whether a forward op stands in the bodies of an untagged op."""
    return any(
        inner.phase == FORWARD or _holds_forward(inner) for b in op.bodies for inner in b.ops
    )


def _holds_backward(bodies: Sequence[Block]) -> bool:
    return any(
        op.phase in (RECOMPUTE, BACKWARD) or _holds_backward(op.bodies)
        for body in bodies
        for op in body.ops
    )


def _entering(op: Op, body: Block, after: set[Value]) -> frozenset[Value]:
    """The body's inputs that a gradient has a part in; those of a loop's first trip."""
    if op.nest is not None:
        outside = [op.operands[i] for i in op.nest.operands]
        if len(outside) != len(body.inputs):  # the condition of a while loop
            return frozenset()
    else:
        outside = list(op.operands[1:])  # of a cond, behind its index
    pairs = zip(body.inputs, outside, strict=False)
    return frozenset(inner for inner, outer in pairs if outer in after)


def _leaving(op: Op, body: Block, fed: set[Value]) -> frozenset[Value]:
    """The body's outputs whose result a forward pass reads."""
    if len(body.outputs) != len(op.results):  # the condition of a while loop
        return frozenset()
    pairs = zip(body.outputs, op.results, strict=True)
    return frozenset(inner for inner, outer in pairs if outer in fed)

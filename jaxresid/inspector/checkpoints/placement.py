"""Classify where a checkpoint is: around the whole function, at its end, or around its only loop.

The class is read off the primal program, by where the work is. Work is FLOPs and transcendentals
as counted; what a loss adds after its last layer, a sum of squares, is below the thresholds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jaxresid import jax_compat
from jaxresid.inspector.checkpoints.sites import CheckpointSite
from jaxresid.inspector.cost.jaxpr_cost import Costs
from jaxresid.inspector.jaxpr.phases import BACKWARD, FORWARD, RECOMPUTE
from jaxresid.inspector.program.build import Program, ValueRole, program_of_jaxpr
from jaxresid.inspector.program.ops import UNWRITTEN, Op, Value
from jaxresid.jaxpr_types import Eqn

WHOLE, LAST_STAGE, AROUND_LOOP = "whole", "last-stage", "around-loop"
# Shares of the function's work.
NEARLY_ALL = 0.95
NEARLY_NONE = 0.02
# The tags of what was differentiated already when it was differentiated.
_TWICE = re.compile(r"jvp\((jvp|transpose)\(")


@dataclass(frozen=True, slots=True)
class _Work:
    """The work inside a checkpoint, the work after it, and the total work of the function."""

    inside: int
    after: int
    total: int


def shape(primal: Callable[[], Program], site: CheckpointSite) -> str | None:
    """Return `whole`, `around-loop` or `last-stage`; None where the checkpoint is none of these.

    Args:
      primal: makes the program of the function itself, see `program.program_of_jaxpr`.
      site: the checkpoint.
    """
    if len(site.calls) != 1 or site.trips != 1 or site.is_nested:
        return None
    call, program = site.calls[0], primal()
    ops = [op for op in program.block.ops if any(eqn is call.eqn for eqn in op.context.remats)]
    return _shape(_work(program, call.eqn), ops, 1)


def step_shape(
    step: Callable[[], Program], site: CheckpointSite, is_in: Callable[[Op], bool]
) -> str | None:
    """Return what `shape` does for a checkpoint in a training step.

    The work is counted in the checkpoint's body and in the forward pass around it.

    Args:
      step: makes the program of the step.
      site: the checkpoint.
      is_in: tells whether a forward op does what the checkpoint holds.
    """
    if len(site.calls) != 1 or site.trips != 1 or site.is_nested or len(site.bodies) != 1:
        return None
    program = step()
    own = [op for op in program.block.ops if op.phase == FORWARD and is_in(op)]
    if not own or any(
        _TWICE.search(f"{o.context.tags}/{jax_compat.name_stack(o.eqn)}") for o in own
    ):
        return None  # of a derivative inside the loss, or of a rule for one
    body = site.bodies[0]
    roles = [ValueRole("argument")] * (len(body.constvars) + len(body.invars))
    held = program_of_jaxpr(body, roles, [ValueRole("output")] * len(body.outvars), as_written=True)
    costs = Costs()
    inside = sum(_of(op, costs) for op in held.block.ops)
    around, after = _forward_work_outside(program, is_in)
    return _shape(_Work(inside, after, inside + around), held.block.ops, 0)


def _shape(work: _Work, ops: Sequence[Op], depth: int) -> str | None:
    """Return the class of a checkpoint by the work around it.

    Args:
      work: the work inside and after the checkpoint, and in total.
      ops: the ops of the checkpoint.
      depth: how many checkpoints are around each of these ops.
    """
    if not work.total:
        return None
    if work.inside >= NEARLY_ALL * work.total:
        return AROUND_LOOP if _is_loop(ops, depth) else WHOLE
    return LAST_STAGE if work.after <= NEARLY_NONE * work.total else None


def _forward_work_outside(step: Program, is_in: Callable[[Op], bool]) -> tuple[int, int]:
    """Return the work of a forward pass outside a checkpoint, and the part of it that comes after.

    What is made for the backward pass alone is not counted as work of the function itself.
    """
    ops, reached = step.block.ops, set[Value]()
    after: set[int] = set()
    for i, op in enumerate(ops):
        if op.phase == FORWARD:
            inside = is_in(op)
            if inside or any(v in reached for v in op.operands):
                reached.update(op.results)
                after.update([] if inside else [i])
    needed = set(step.block.outputs)
    for op in ops:
        if op.phase not in (FORWARD, RECOMPUTE, BACKWARD):
            needed.update(op.operands)
    last = max((i for i, op in enumerate(ops) if op.phase == FORWARD), default=-1)
    total = behind = 0
    costs = Costs()
    for i in range(len(ops) - 1, -1, -1):
        op = ops[i]
        if op.phase != FORWARD:
            continue
        inside = is_in(op)
        if not (inside or i == last or any(v in needed for v in op.results)):
            continue
        needed.update(op.operands)
        if not inside:
            work = _of(op, costs)
            total += work
            behind += work if i in after else 0
    return total, behind


def _work(primal: Program, remat: object) -> _Work:
    inside = after = total = 0
    reached: set[Value] = set()
    costs = Costs()
    for op in primal.block.ops:
        work = _of(op, costs)
        total += work
        if any(eqn is remat for eqn in op.context.remats):
            inside += work
            reached.update(op.results)
        elif any(v in reached for v in op.operands):
            after += work
            reached.update(op.results)
    return _Work(inside, after, total)


def _of(op: Op, costs: Costs) -> int:
    if op.name in UNWRITTEN:
        return 0
    cost = costs.of_eqn(op.eqn)
    return cost.flops + cost.transcendentals


def _is_loop(ops: Sequence[Op], depth: int) -> bool:
    """Return whether a loop of several trips, whose body is not checkpointed, does all the work."""
    loops = [op for op in ops if op.is_loop and (op.nest is None or op.nest.length != 1)]
    costs = Costs()
    work = sum(_of(op, costs) for op in loops)
    if not loops or work < NEARLY_ALL * sum(_of(op, costs) for op in ops):
        return False
    return not any(
        jax_compat.primitive_name(eqn) == "remat" for op in loops for eqn in _body_eqns(op, depth)
    )


def _body_eqns(op: Op, depth: int) -> list[Eqn]:
    return [eqn for body in op.bodies for inner in body.ops for eqn in inner.context.remats[depth:]]

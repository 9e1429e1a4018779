"""Classify where a checkpoint is: around the whole function, at its end, or around its only loop.

The class is read off the primal program, by where the work is. Work is FLOPs and transcendentals
as counted; what a loss adds after its last layer, a sum of squares, is below the thresholds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jaxresid import jax_compat
from jaxresid.inspector.checkpoints.sites import CheckpointSite
from jaxresid.inspector.cost.jaxpr_cost import Costs
from jaxresid.inspector.program.build import Program
from jaxresid.inspector.program.ops import UNWRITTEN, Op, Value
from jaxresid.jax_compat.jaxpr_types import Eqn

WHOLE, LAST_STAGE, AROUND_LOOP = "whole", "last-stage", "around-loop"
# Shares of the function's work.
NEARLY_ALL = 0.95
NEARLY_NONE = 0.02


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

"""How a checkpoint stands in its function: around all of it, at its end, around its only loop.

Read off the primal program by where the work is. Work is FLOPs and transcendentals as counted;
what a loss adds after its last layer, a sum of squares, is below the thresholds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jaxresid.inspector import _jax
from jaxresid.inspector.cost import Costs
from jaxresid.inspector.ops import Op, Value
from jaxresid.inspector.program import Program
from jaxresid.inspector.sites import Site

WHOLE, LAST_STAGE, AROUND_LOOP = "whole", "last-stage", "around-loop"
# Shares of the function's work.
NEARLY_ALL = 0.95
NEARLY_NONE = 0.02


@dataclass(frozen=True, slots=True)
class _Work:
    """Work before, in and after a checkpoint, and on values that have nothing to do with it."""

    inside: int
    after: int
    total: int


def shape(primal: Callable[[], Program], site: Site) -> str | None:
    """`whole`, `around-loop` or `last-stage`; None where it is none of these.

    Args:
      primal: makes the program of the function itself, see `program.whole`.
    """
    if len(site.calls) != 1 or site.trips != 1 or site.is_nested:
        return None
    call, program = site.calls[0], primal()
    work = _work(program, call.eqn)
    if not work.total:
        return None
    if work.inside >= NEARLY_ALL * work.total:
        return AROUND_LOOP if _is_loop(program, call.eqn) else WHOLE
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
    if op.name == "barrier":
        return 0
    cost = costs.of_eqn(op.eqn)
    return cost.flops + cost.transcendentals


def _is_loop(primal: Program, remat: object) -> bool:
    """Whether a loop of several trips, whose body is not checkpointed, does all the work in it."""
    ops = [op for op in primal.block.ops if any(eqn is remat for eqn in op.context.remats)]
    loops = [op for op in ops if op.is_loop and (op.nest is None or op.nest.length != 1)]
    costs = Costs()
    work = sum(_of(op, costs) for op in loops)
    if not loops or work < NEARLY_ALL * sum(_of(op, costs) for op in ops):
        return False
    return not any(_jax.primitive_name(eqn) == "remat" for op in loops for eqn in _body_eqns(op))


def _body_eqns(op: Op) -> list[object]:
    return [eqn for body in op.bodies for inner in body.ops for eqn in inner.context.remats[1:]]

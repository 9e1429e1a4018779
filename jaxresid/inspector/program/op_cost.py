"""Count what the ops of a program cost, by pass."""

from __future__ import annotations

from jaxresid.inspector.cost.jaxpr_cost import flat_cost, loop_cost
from jaxresid.inspector.jaxpr.while_loops.trips import WhileTrips
from jaxresid.inspector.program.ops import UNWRITTEN, Block, Op
from jaxresid.results import Cost


def block_cost(block: Block, trips: WhileTrips, *phases: str) -> Cost:
    """Return the cost of a block's ops: those of the given phases, or all without any.

    Args:
      block: the block.
      trips: the trips of its while loops.
      phases: the phases to count.
    """
    total = Cost()
    for op in block.ops:
        inside = not phases or op.phase in phases
        total += op_cost(op, trips, () if inside else phases) if inside or op.bodies else Cost()
    return total


def op_cost(op: Op, trips: WhileTrips, phases: tuple[str, ...] = ()) -> Cost:
    """Return the cost of one op; for an op with bodies, that of their ops of some phases.

    Args:
      op: the op.
      trips: the trips of while loops.
      phases: the phases to count inside its bodies; all where empty.
    """
    if op.name in UNWRITTEN:
        return Cost()
    if not op.bodies:
        return flat_cost(op.eqn) or Cost(uncosted=(op.name,))
    each = [block_cost(body, trips, *phases) for body in op.bodies]
    if op.nest is None:
        return max(each, key=lambda cost: cost.flops)
    once = sum(each, Cost())
    if op.nest.length is not None:
        return once * op.nest.length
    branches = {
        id(inner.params["branches"]): [block_cost(b, trips, *phases) for b in inner.bodies]
        for inner in op.bodies[0].ops
        if inner.name == "cond"
    }
    return loop_cost(once, trips.of(op.eqn), branches)

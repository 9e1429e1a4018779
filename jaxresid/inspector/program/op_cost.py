"""Count what the ops of a program cost, by pass."""

from __future__ import annotations

from jaxresid.inspector.cost.jaxpr_cost import flat_cost
from jaxresid.inspector.program.ops import Block, Op
from jaxresid.model import Cost


def block_cost(block: Block, *phases: str) -> Cost:
    """Return the cost of a block's ops: those of the given phases, or all without any."""
    total = Cost()
    for op in block.ops:
        inside = not phases or op.phase in phases
        total += op_cost(op, () if inside else phases) if inside or op.bodies else Cost()
    return total


def op_cost(op: Op, phases: tuple[str, ...] = ()) -> Cost:
    """Return the cost of one op; for an op with bodies, that of their ops of some phases.

    Args:
      op: the op.
      phases: the phases to count inside its bodies; all where empty.
    """
    if op.name == "barrier":
        return Cost()
    if not op.bodies:
        return flat_cost(op.eqn) or Cost(uncosted=(op.name,))
    each = [block_cost(body, *phases) for body in op.bodies]
    if op.nest is None:
        return max(each, key=lambda cost: cost.flops)
    trips = op.nest.length
    total = sum(each, Cost()) * (trips or 1)
    return total if trips else total + Cost(notes=("while: trips unknown, counted once",))

"""Lower a block for a compiler that removes optimization barriers."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from jaxresid.inspector.cost.jaxpr_cost import flat_cost
from jaxresid.inspector.memory.profile import Profile
from jaxresid.inspector.program.build import scheduled
from jaxresid.inspector.program.ops import Block, Op, Value

# Of the work that is asked for, as much may be left where all is merged: constants folded
# differently.
_NOTHING = 0.01


def without_barriers(block: Block, *, is_body: bool) -> Block:
    """Return the block with what its barriers kept apart merged.

    What is left of the recomputation is where a scheduler puts it without them. The bodies of its
    loops are as they were.
    """
    if all(op.name != "barrier" for op in block.ops):
        return block
    names: dict[Value, Value] = {}
    known: dict[Hashable, Op] = {}
    ops: list[Op] = []
    for op in block.ops:
        operands = tuple(names.get(v, v) for v in op.operands)
        if op.name == "barrier":
            names.update(zip(op.results, operands, strict=True))
            continue
        key = _key(op, operands)
        same = None if key is None else known.get(key)
        if same is not None:
            names.update(zip(op.results, same.results, strict=True))
            continue
        made = op if operands == op.operands else replace(op, operands=operands)
        ops.append(made)
        if key is not None:
            known[key] = made
    outputs = tuple(names.get(v, v) for v in block.outputs)
    return scheduled(Block(block.inputs, tuple(ops), outputs), is_body)


def barrier_removal_warnings(profile: Profile) -> tuple[str, ...]:
    """Return the warnings for trying out checkpoints on a compiler that undoes them."""
    if not profile.removes_barriers:
        return ()
    return (
        f"{profile.removes_barriers} undoes checkpoints outside loops: the peaks shown are those"
        " that it reaches, as if they were not there",
    )


def is_merged(block: Block, plain: Block) -> bool:
    """Return whether removing barriers leaves no recomputation of a program's checkpoint.

    That is, without barriers the program computes no more than the same program without a
    checkpoint, although as written it computes more.

    Args:
      block: the block of the program.
      plain: the block of the same program without a checkpoint.
    """
    asked = _work(block) - _work(plain)
    left = _work(block, merged=True) - _work(plain, merged=True)
    return asked > 0 and left <= _NOTHING * asked


def _work(block: Block, *, merged: bool = False, is_body: bool = False) -> int:
    if merged:
        block = without_barriers(block, is_body=is_body)
    total = 0
    for op in block.ops:
        cost = flat_cost(op.eqn) if op.name != "barrier" and not op.bodies else None
        if cost is not None:
            total += cost.flops + cost.transcendentals
        trips = (op.nest.length or 1) if op.nest is not None else 1
        total += trips * sum(_work(body, merged=merged, is_body=True) for body in op.bodies)
    return total


def _key(op: Op, operands: tuple[Value, ...]) -> Hashable:
    """Return what makes an op equal to another; None if nothing does.

    A compiler compares no loops.
    """
    if op.bodies or op.eqn.effects:
        return None
    # What a primitive makes follows from its operands and params, which it orders.
    given = tuple(v if v.literal is None else (v.literal, v.dtype, v.shape) for v in operands)
    key = (op.name, op.devices, len(op.results), *op.params.items(), given)
    try:
        hash(key)
    except TypeError:
        return None
    return key

"""Read a loop's stack of slices of its own input as that input.

XLA has a pass for this, which a TPU's compiler runs and a GPU's does not (libtpu 0.0.52 and jaxlib
0.12.0.1): where the body of a scan returns its parameters, what reads the stack reads these.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from jaxresid.inspector.program.ops import Block, Op, Value
from jaxresid.inspector.program.pruning import pruned


def without_stacked_copies(block: Block) -> Block:
    """Return a whole program's block in which nothing reads a stack that is a loop's input.

    One that the program returns is there all the same.
    """
    same = {stack: whole for op in block.ops for stack, whole in _copies(op)}
    if not same:
        return block
    ops = tuple(
        op
        if same.keys().isdisjoint(op.operands)
        else replace(op, operands=tuple(same.get(v, v) for v in op.operands))
        for op in block.ops
    )
    return pruned(replace(block, ops=ops))


def _copies(op: Op) -> Iterator[tuple[Value, Value]]:
    nest = op.nest
    if nest is None or not nest.stacked or not nest.slices:
        return
    body = op.bodies[0]
    slices = {body.inputs[i]: op.operands[nest.operands[i]] for i in nest.slices}
    for i, result in enumerate(nest.results):
        if result is not None and i in nest.stacked and body.outputs[i] in slices:
            yield op.results[result], slices[body.outputs[i]]

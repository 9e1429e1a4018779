"""Model what XLA:CPU materialises, as of jaxlib 0.12.

A block becomes the kernels that XLA:CPU makes of it, in the order in which it runs them: copies are
written out (`copies`), ops are gathered into fusions (`fusion`), and what is left runs breadth
first (`schedule`). The operands of an op that comes out are the arrays that the kernel reads, and
its results those it writes, so that nothing more is to be decided here.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxresid.inspector.jaxpr.nesting import Nest
from jaxresid.inspector.memory.cpu.barriers import without_barriers
from jaxresid.inspector.memory.cpu.copies import OVERWRITING, insert_copies
from jaxresid.inspector.memory.cpu.fusion import Kernel, fused
from jaxresid.inspector.memory.cpu.schedule import breadth_first
from jaxresid.inspector.program.ops import Block, Op, Value


def kernels(block: Block, nest: Nest | None) -> Block:
    """Return the kernels of a block, which is a loop's body if there is a `nest`."""
    found = insert_copies(block, nest)
    return breadth_first(fused(found.block, found.plain), found.rewritten)


@dataclass(frozen=True, slots=True)
class Cpu:
    """XLA:CPU, which keeps temporaries in the buffers of outputs that are not written yet.

    Attributes:
      removes_barriers: see `memory.profile.Profile`.
    """

    removes_barriers: str = ""
    name = "cpu"
    reuses_output_buffers = True
    carries_stay = True

    def lowered(self, block: Block, nest: Nest | None) -> Block:
        """Return the kernels that XLA:CPU makes of the block; `nest` is given for a loop's body."""
        if self.removes_barriers:
            block = without_barriers(block, is_body=nest is not None)
        return kernels(block, nest)

    def nbytes(self, value: Value, block: Block) -> int:
        """Return the bytes of a stored value."""
        return value.nbytes

    def in_place(self, op: Op, value: Value) -> bool:
        """Return whether the op may write a result over `value`.

        A loop may write over its carries and its stacks, a scatter or an update over its first
        operand, and a fusion over what it was allowed to.
        """
        if op.nest is not None:
            stacks = sum(op.results[i].memory == "device" for i in op.nest.stacked)
            carried = {op.operands[op.nest.operands[i]] for i in op.nest.carries}
            return value in carried or value in op.operands[len(op.operands) - stacks :]
        if op.name in OVERWRITING and not isinstance(op, Kernel):
            return value is op.operands[0]
        return isinstance(op, Kernel) and value in op.overwrites

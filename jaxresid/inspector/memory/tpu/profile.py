"""Model what a TPU's compiler materialises."""

from __future__ import annotations

from jaxresid.inspector.jaxpr.nesting import Nest
from jaxresid.inspector.memory.tpu.kernels import Kernel, Kernels, kernels
from jaxresid.inspector.program.ops import Block, Op, Value


class Tpu:
    """A TPU's compiler."""

    name = "tpu"
    reuses_output_buffers = False
    carries_stay = False
    removes_barriers = ""

    def lowered(self, block: Block, nest: Nest | None) -> Block:
        """Return the kernels that a TPU's compiler makes of the block.

        Args:
          block: the block; one that is lowered already stays as it is.
          nest: how it lines up with the loop whose body it is; None if it is no loop's.
        """
        return kernels(block, nest)

    def nbytes(self, value: Value, block: Block) -> int:
        """Return the bytes of a stored value, padding included."""
        return block.nbytes.get(value, value.nbytes) if isinstance(block, Kernels) else value.nbytes

    def in_place(self, op: Op, value: Value) -> bool:
        """Return whether the op may write a result over `value`."""
        return isinstance(op, Kernel) and value in op.overwrites

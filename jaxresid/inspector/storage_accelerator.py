"""What a TPU's compiler materialises."""

from __future__ import annotations

from jaxresid.inspector.kernels_accelerator import Kernel, Kernels, kernels
from jaxresid.inspector.nesting import Nest
from jaxresid.inspector.program import Block, Op, Value


class Accelerator:
    """The default profile."""

    name = "accelerator"
    outputs_lend_room = False
    carries_stay = False

    def lowered(self, block: Block, nest: Nest | None) -> Block:
        return kernels(block, nest)

    def nbytes(self, value: Value, block: Block) -> int:
        return block.nbytes.get(value, value.nbytes) if isinstance(block, Kernels) else value.nbytes

    def in_place(self, op: Op, value: Value) -> bool:
        return isinstance(op, Kernel) and value in op.overwrites

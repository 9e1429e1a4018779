"""What a TPU's compiler materialises."""

from __future__ import annotations

from jaxresid.inspector.jaxpr.nesting import Nest
from jaxresid.inspector.memory.tpu.kernels import Kernel, Kernels, kernels
from jaxresid.inspector.program.ops import Block, Op, Value


class Accelerator:
    """The default profile."""

    name = "accelerator"
    outputs_lend_room = False
    carries_stay = False
    removes_barriers = ""

    def __init__(self) -> None:
        # The last program lowered: its time is asked after its peak.
        self._last: tuple[Block, Kernels] | None = None

    def lowered(self, block: Block, nest: Nest | None) -> Block:
        if self._last is None or self._last[0] is not block:
            made = kernels(block, nest)
            if made is block or nest is not None:
                return made
            self._last = block, made
        return self._last[1]

    def nbytes(self, value: Value, block: Block) -> int:
        return block.nbytes.get(value, value.nbytes) if isinstance(block, Kernels) else value.nbytes

    def in_place(self, op: Op, value: Value) -> bool:
        return isinstance(op, Kernel) and value in op.overwrites

"""Order the kernels of a block as XLA:CPU runs them."""

from __future__ import annotations

from collections import deque
from collections.abc import Set
from dataclasses import replace

from jaxresid.inspector.program.ops import Block, Op, Value


def breadth_first(block: Block, rewritten: Set[Value]) -> Block:
    """Return the block with its ops in the order in which XLA:CPU runs them.

    The order is first in, first out, from when all operands are there. XLA:CPU's default scheduler
    (BFScheduler) is made for concurrency: what can run early runs early. Of several that become
    ready at once, the dots that were rewritten come last.
    """
    waiting: dict[Op, int] = {}
    users: dict[Value, list[Op]] = {}
    makers = {v for op in block.ops for v in op.results}
    ready: deque[Value | Op] = deque(block.inputs)
    late = [op for op in block.ops if op.results and op.results[0] in rewritten]
    for op in (*(op for op in block.ops if not (op.results and op.results[0] in rewritten)), *late):
        needs = {v for v in op.operands if v in makers or v in block.inputs}
        waiting[op] = len(needs)
        for v in needs:
            users.setdefault(v, []).append(op)
        if not needs:
            ready.append(op)
    order: list[Op] = []
    while ready:
        done = ready.popleft()
        if isinstance(done, Op):
            order.append(done)
        for v in done.results if isinstance(done, Op) else (done,):
            for op in users.get(v, ()):
                waiting[op] -= 1
                if waiting[op] == 0:
                    ready.append(op)
    return replace(block, ops=tuple(order))

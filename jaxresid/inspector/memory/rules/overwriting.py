"""Find what elementwise kernels may not write over, as a compiler makes more of them one.

Only a kernel that reads each element where it writes one may write over what it reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from jaxresid.inspector.jaxpr.primitives import CASTS, ELEMENTWISE, REDUCTIONS
from jaxresid.inspector.program.ops import Op, Value

# Longer rows are summed up by several blocks of threads, before the kernel that reads the sums.
_LONGEST_ROW = 16384


def kept_operands(kernels: Sequence[Op]) -> Mapping[Op, frozenset[Value]]:
    """Return, for kernels that are one kernel with others, the operands not to be written over."""
    siblings = _siblings(kernels)
    readers = Counter(v for kernel in kernels for v in set(kernel.operands))
    makers = {v: kernel for kernel in kernels for v in kernel.results}
    kept: dict[Op, frozenset[Value]] = {}
    for kernel in kernels:
        if kernel in siblings:
            kept[kernel] = frozenset(kernel.operands)
        elif kernel.name in ELEMENTWISE | CASTS:
            summed = _summed(kernel, readers, makers)
            if summed:
                kept[kernel] = frozenset(summed)
    return kept


def _summed(kernel: Op, readers: Mapping[Value, int], makers: Mapping[Value, Op]) -> set[Value]:
    """Return the arrays whose rows are summed up for a kernel alone, as for a softmax.

    The kernel sums them up itself, and reads them again after that.
    """
    summed: set[Value] = set()
    for v in kernel.operands:
        maker = makers.get(v)
        if maker is not None and readers[v] == 1 and _sums_rows(maker):
            summed.update(maker.operands, _summed(maker, readers, makers))
    return summed


def _sums_rows(op: Op) -> bool:
    if op.name not in REDUCTIONS:
        return False
    shape = op.eqn.invars[0].aval.shape
    return len(shape) - 1 in op.params["axes"] and shape[-1] <= _LONGEST_ROW


def _siblings(kernels: Sequence[Op]) -> set[Op]:
    """Return the elementwise kernels that read an array that another one of their size reads.

    Neither needs the other, so that they become one kernel with several results.
    """
    last = {v: i for i, kernel in enumerate(kernels) for v in kernel.operands}
    # Numbers of kernels as bits: those that a value needs, and those that read it, as long as it is
    # read.
    needed_by: dict[Value, int] = {}
    reading: dict[Value, dict[int, int]] = {}
    siblings = 0
    for i, kernel in enumerate(kernels):
        own, needed = 1 << i, 0
        for v in kernel.operands:
            needed |= needed_by.get(v, 0)
        needed_by.update((v, needed | own) for v in kernel.results if v in last)
        if kernel.name in ELEMENTWISE:
            size = kernel.results[0].size
            for v in kernel.operands:
                if v.size >= size:
                    by_size = reading.setdefault(v, {})
                    others = by_size.get(size, 0)
                    if beside := others & ~needed:
                        siblings |= beside | own
                    by_size[size] = others | own
        for v in kernel.operands:
            if last[v] == i:
                needed_by.pop(v, None)
                reading.pop(v, None)
    return {
        kernel for kernel, bit in zip(kernels, reversed(bin(siblings)), strict=False) if bit == "1"
    }

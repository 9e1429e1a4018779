"""Decide which ops XLA:CPU runs as one kernel.

First come the library's fusions (LibraryRewriter, YNNPACK): around each reduction and dot, as far
as nothing else reads what is inside. Then come loop fusions (CpuInstructionFusion): an elementwise
value is computed inside the loops that read it, by each of them if it is cheap.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from jaxresid.inspector.jaxpr import primitives
from jaxresid.inspector.jaxpr.primitives import (
    ARG_REDUCTIONS,
    CASTS,
    FILLS,
    PARTS,
    REDUCTIONS,
    TRANSCENDENTAL,
)
from jaxresid.inspector.program.ops import Block, Op, Value

ELEMENTWISE = primitives.ELEMENTWISE | CASTS | {"copy"}
# Read several times they are computed once. A sine is not: XLA:CPU computes it again.
_EXPENSIVE = (TRANSCENDENTAL - {"sin", "cos", "tan"}) | {"div", "rem"}
_MOVES = FILLS | PARTS | {"pad", "rev", "transpose", "reshape", "dynamic_update_slice"}
_REDUCTIONS = REDUCTIONS | ARG_REDUCTIONS
_LOOPS = ELEMENTWISE | _MOVES | _REDUCTIONS
# What YNNPACK has: these reductions, and few of the elementwise.
_SUMS = frozenset({"reduce_sum", "reduce_max", "reduce_min"})
_LIBRARY = frozenset(
    {
        *("abs", "ceil", "convert_element_type", "erf", "exp", "expm1", "floor", "log", "log1p"),
        *("logistic", "neg", "round", "rsqrt", "sign", "sqrt", "tanh", "add", "add_any", "div"),
        *("max", "min", "mul", "pow", "sub", "square", "integer_pow", "one_minus_square"),
        *("sin", "cos"),
    }
)
_LIBRARY_TYPES = frozenset({"float32", "float64", "bfloat16", "int8", "uint8"})
# YNNPACK is left alone with what has fewer elements (kMinElements).
_LIBRARY_SIZE = 4096
# XLA:CPU's loops compute an element no more often than this (FusionNodeIndexingEvaluation).
_MOST_EMITTED = 15
# No emitter takes fusions without end; and what a kernel reads is listed for each.
_MOST = 48


@dataclass(frozen=True, slots=True, eq=False)
class Kernel(Op):
    """Ops that run as one.

    Attributes:
      overwrites: the operands whose buffers the result may take over.
    """

    overwrites: tuple[Value, ...] = ()


def fused(block: Block, plain: Set[Value]) -> Block:
    """Return the block with one op for each kernel; dots that make `plain` values stay alone."""
    graph = _Graph(block, plain)
    graph.gather()
    graph.settle()
    return graph.kernels()


class _Graph:
    def __init__(self, block: Block, plain: Set[Value]) -> None:
        self._block = block
        self._plain = plain
        self._readers: dict[Value, list[Op]] = {}
        self._makers: dict[Value, Op] = {}
        self._pinned = set(block.outputs)
        self._group: dict[Op, list[Op]] = {}
        self._roots: dict[int, Op] = {}
        # Values that a loop that reads them computes itself, and those that have a buffer; a cheap
        # value that others read as well is both.
        self._inside: set[Value] = set()
        self._stored: set[Value] = set()
        self._leaves: dict[Value, tuple[Value, ...]] = {}
        self._views: dict[Value, Value] = {}
        self._shaped: set[Value] = set()
        for op in block.ops:
            for v in dict.fromkeys(op.operands):
                if v.literal is None:
                    self._readers.setdefault(v, []).append(op)
            for v in op.results:
                self._makers[v] = op

    # --- the library's fusions

    def gather(self) -> None:
        for op in reversed(self._block.ops):
            if op in self._group or not self._starts(op):
                continue
            self._grow(op)

    def _grow(self, start: Op) -> None:
        members: dict[Op, None] = {start: None}
        root = start
        fresh = [start]
        while fresh and len(members) < _MOST:
            while fresh and len(members) < _MOST:
                op = fresh.pop()
                for v in op.operands:
                    maker = self._makers.get(v)
                    if (
                        maker is not None
                        and maker not in members
                        and maker not in self._group
                        and v not in self._pinned
                        and self._supported(maker)
                        and all(r in members for r in self._readers[v])
                    ):
                        members[maker] = None
                        fresh.append(maker)
            # A fusion begun at a dot only grows upwards.
            if start.name in _SUMS and root.results[0] not in self._pinned:
                below = self._readers.get(root.results[0], [])
                if len(below) == 1 and below[0] not in self._group and self._supported(below[0]):
                    root = below[0]
                    members[root] = None
                    fresh = list(members)
        group = list(members)
        for op in group:
            self._group[op] = group
        self._roots[id(group)] = root

    def _starts(self, op: Op) -> bool:
        return (op.name in _SUMS or op.name == "dot_general") and self._supported(op)

    def _supported(self, op: Op) -> bool:
        """Return whether a library fusion may take the op in."""
        if isinstance(op, Kernel):
            return False
        if op.name == "broadcast_in_dim":
            return op.results[0].dtype in _LIBRARY_TYPES
        if op.name not in _LIBRARY and op.name not in _SUMS and op.name != "dot_general":
            return False
        arrays = (*op.operands, *op.results)
        if any(v.dtype not in _LIBRARY_TYPES for v in arrays):
            return False
        if op.name == "dot_general":
            return op.results[0].size > 1 and op.results[0] not in self._plain
        return max(v.size for v in arrays) >= _LIBRARY_SIZE

    # --- loop fusions

    def settle(self) -> None:
        emitted: dict[Value, int] = {}
        for op in reversed(self._block.ops):
            if op in self._group:
                continue
            if not _is_loop(op):
                self._stored.update(op.results)
                continue
            v = op.results[0]
            readers = self._readers.get(v, [])
            emitted[v] = _emitted(readers, emitted)
            loops = [r for r in readers if _is_loop(r) and r not in self._group]
            elsewhere = v in self._pinned or len(loops) < len(readers)
            if not loops or emitted[v] > _MOST_EMITTED:
                self._stored.add(v)
            elif _is_expensive(op):
                if elsewhere or len(loops) > 1 or loops[0].name == "broadcast_in_dim":
                    self._stored.add(v)
                else:
                    self._inside.add(v)
            elif _reads_one(op):
                self._inside.add(v)
                if elsewhere:
                    self._stored.add(v)
            elif elsewhere:
                self._stored.add(v)
            else:
                self._inside.add(v)
            if v not in self._inside:
                emitted[v] = 1

    # --- what comes out

    def kernels(self) -> Block:
        ops: list[Op] = []
        for op in self._block.ops:
            group = self._group.get(op)
            if group is not None:
                if self._roots[id(group)] is op:
                    ops.append(kernel(op, self._outside(group)))
            elif not _is_loop(op):
                operands = tuple(self._views.get(v, v) for v in op.operands)
                ops.append(op if operands == op.operands else replace(op, operands=operands))
            elif op.name == "reshape":
                ops += self._reshaped(op)
            else:
                ops += self._computed(op)
        outputs = tuple(self._views.get(v, v) for v in self._block.outputs)
        return replace(self._block, ops=tuple(ops), outputs=outputs)

    def _outside(self, group: Sequence[Op]) -> tuple[Value, ...]:
        internal = {v for op in group for v in op.results}
        read = (v for op in group for v in op.operands if v.literal is None)
        return tuple(dict.fromkeys(self._views.get(v, v) for v in read if v not in internal))

    def _read(self, values: Sequence[Value]) -> tuple[Value, ...]:
        """Return the stored values that a loop reads for these."""
        found: dict[Value, None] = {}
        for v in values:
            if v.literal is None:
                found.update(dict.fromkeys(self._leaves.get(v, (v,))))
        return tuple(found)

    def _computed(self, op: Op) -> Iterator[Kernel]:
        v = op.results[0]
        operands = self._read(op.operands)
        if v in self._inside:
            if len(operands) <= _MOST:
                self._leaves[v] = operands
            else:
                self._stored.add(v)
        if v in self._stored:
            same = tuple(u for u in operands if u.nbytes == v.nbytes)
            yield kernel(op, operands, same if op.name in ELEMENTWISE else ())

    def _reshaped(self, op: Op) -> Iterator[Kernel]:
        """Yield the kernels of a reshape.

        For a stored value there are none: the reshape is a view of it. Any other value is computed
        in this shape for what needs it in this shape, which is why nothing can be overwritten, and
        once more by the loops that read it.
        """
        v, whole = op.results[0], op.operands[0]
        if whole not in self._inside or whole in self._stored:
            self._views[v] = self._views.get(whole, whole)
            self._leaves[v] = (self._views[v],)
            return
        operands = self._leaves[v] = self._leaves[whole]
        if v in self._stored:
            if whole not in self._shaped:
                self._shaped.add(whole)
                self._views[v] = whole
            made = (self._views.get(v, v),)
            yield kernel(replace(self._makers[whole], results=made), operands)


def kernel(op: Op, operands: tuple[Value, ...], overwrites: tuple[Value, ...] = ()) -> Kernel:
    """Return the kernel that an op becomes.

    Args:
      op: the op whose results it makes.
      operands: the arrays that it reads.
      overwrites: the operands whose buffers the result may take over.
    """
    return Kernel(
        op.name,
        operands,
        op.results,
        op.eqn,
        op.context,
        op.phase,
        overwrites=overwrites,
    )


def _is_loop(op: Op) -> bool:
    return op.name in _LOOPS and len(op.results) == 1 and not isinstance(op, Kernel)


def _emitted(readers: Sequence[Op], emitted: Mapping[Value, int]) -> int:
    """Return how often a loop computes an element that `readers` read.

    It is computed anew for each reader that shifts it.
    """
    same, shifted = 1, 0
    for op in readers:
        often = emitted.get(op.results[0], 1) if op.results else 1
        if op.name in _MOVES:
            shifted += often
        else:
            same = max(same, often)
    return max(same, shifted)


def _is_expensive(op: Op) -> bool:
    if op.name == "div" and op.results[0].dtype != "bfloat16":
        # Division by what is broadcast is multiplication by what is broadcast.
        divisor = op.operands[1]
        return divisor.literal is None and divisor.size == op.results[0].size
    if op.results[0].dtype == "bfloat16" and op.name in ELEMENTWISE and op.name != "select_n":
        return True  # it is computed in float32, and rounding to bfloat16 is expensive
    return op.name in _EXPENSIVE or op.name in _REDUCTIONS


def _reads_one(op: Op) -> bool:
    """Return whether computing it again reads no more than one array of its size."""
    size = op.results[0].size
    return sum(v.literal is None and v.size >= size for v in dict.fromkeys(op.operands)) <= 1

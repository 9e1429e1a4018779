"""Tell what a compiler takes an op for, which decides whether it is computed where it is read."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, fields, replace

from jaxresid.inspector.jaxpr.primitives import (
    ARG_REDUCTIONS,
    CASTS,
    CONTRACTIONS,
    ELEMENTWISE,
    FILLS,
    PARTS,
    REDUCTIONS,
    SCATTERS,
    VIEWS,
)
from jaxresid.inspector.memory.profile import Profile
from jaxresid.inspector.program.ops import CUT, Block, Op, Value

# Not measured: these are taken for kernels of their own, which nothing is fused with.
_UNMEASURED = frozenset(
    {
        *("acosh", "asinh", "atanh"),
        *("ragged_dot_general", "scaled_matmul", "scaled_matmul_wrapper"),
    }
)
# Too expensive to be computed twice.
EXPENSIVE = frozenset({"sin", "cos", "tan", "erf", "erfc", "sinh", "cosh", "asin", "acos"})
FUSED_ELEMENTWISE = (ELEMENTWISE | CASTS | {"copy"}) - EXPENSIVE - _UNMEASURED
_MOVES = FILLS | PARTS | {"pad", "rev", "device_put", CUT}
MULTIPLIED = CONTRACTIONS - _UNMEASURED
ALL_REDUCTIONS = REDUCTIONS | ARG_REDUCTIONS
# What takes in an expensive value that nothing else reads.
_READING = FUSED_ELEMENTWISE | ALL_REDUCTIONS | MULTIPLIED
# Too expensive as well, but what is made of them may be written instead: a dropout's mask.
RANDOM = frozenset({"random_bits", "threefry2x32"})
# Computed inside what reads them, by some compilers.
_FUSIBLE_MOVES = frozenset({"gather", "concatenate"})
# Calls into a library, which read arrays and write the type that they are asked for.
LIBRARY = frozenset({"gather", "sort", "fft", "cholesky", "triangular_solve"})
# A scatter into zeros that is added to an array is one into that array.
_ADDED = frozenset({"scatter-add", "broadcast_in_dim"})
_SUMS = frozenset({"add", "add_any"})
_ZERO = frozenset({"0", "0.0"})
# What may be marked as something else than it looks like, and what tells.
_LOOKED_AT = EXPENSIVE | _FUSIBLE_MOVES | SCATTERS | {"broadcast_in_dim", "dot_general"}


@dataclass(slots=True, eq=False)
class Elementwise(Op):
    """An op of another name that is computed as elementwise ones are."""


@dataclass(slots=True, eq=False)
class Move(Op):
    """A gather or concatenation that is computed inside what reads it."""


@dataclass(slots=True, eq=False)
class Sum(Op):
    """A dot with a vector: products are summed in the type that it is written in."""


def is_multiplied(op: Op) -> bool:
    """Return whether the op runs on the matrix unit."""
    return op.name in MULTIPLIED and not isinstance(op, Elementwise | Sum)


def is_elementwise(op: Op) -> bool:
    """Return whether the op is elementwise, or computed as elementwise ops are."""
    return op.name in FUSED_ELEMENTWISE or isinstance(op, Elementwise)


def is_view(op: Op) -> bool:
    """Return whether the op only views its operand in another shape, order or type."""
    return op.name in VIEWS and op.operands[0].literal is None


def reorders(op: Op) -> bool:
    """Return whether the op is a transpose that changes the order of the elements."""
    if op.name != "transpose":
        return False
    shape = op.operands[0].shape
    axes = [axis for axis in op.params["permutation"] if shape[axis] > 1]
    return axes != sorted(axes)


def is_fusible(op: Op) -> bool:
    """Return whether the op is computed inside what reads it, unless something prevents that."""
    if is_elementwise(op) or is_view(op) or isinstance(op, Move):
        return True
    return op.name in _MOVES and not is_transfer(op)


def is_transfer(op: Op) -> bool:
    """Return whether the op brings a value from one memory into another.

    No reader can do that itself. A kernel that ends in one may read more than it writes.
    """
    if op.name != "device_put":
        return False
    return len({v.memory for v in (*op.operands, *op.results)}) > 1


def scattered_into_sums(block: Block) -> Block:
    """Return a block whose scatters into zeros write into what their results are added to.

    So there are no zeros of that size, as in the gradient of logits from which those of the labels
    are picked.
    """
    makers = {op.results[0]: op for op in block.ops if op.name in _ADDED}
    if not any(op.name == "scatter-add" for op in makers.values()):
        return block
    readers = readers_of(block)
    outputs = set(block.outputs)

    def into_zeros(value: Value) -> Op | None:
        scatter = makers.get(value)
        if scatter is None or scatter.name != "scatter-add" or value in outputs:
            return None
        zeros = makers.get(scatter.operands[0])
        is_zeros = zeros is not None and zeros.operands[0].literal in _ZERO
        return scatter if is_zeros and len(readers[value]) == 1 else None

    sums: dict[Op, Op] = {}
    scatters: set[Op] = set()
    for op in block.ops:
        if op.name not in _SUMS:
            continue
        for value, other in (op.operands, op.operands[::-1]):
            scatter = into_zeros(value)
            if scatter is not None and other.literal is None:
                scatters.add(scatter)
                operands = (other, *scatter.operands[1:])
                sums[op] = replace(scatter, operands=operands, results=op.results)
                break
    ops = tuple(sums.get(op, op) for op in block.ops if op not in scatters)
    return replace(block, ops=ops)


def readers_of(block: Block) -> dict[Value, list[Op]]:
    """Return the ops of a block that read each value."""
    readers: defaultdict[Value, list[Op]] = defaultdict(list)
    for op in block.ops:
        for v in op.operands:
            readers[v].append(op)
    return dict(readers)


def marked(block: Block, readers: dict[Value, list[Op]], profile: Profile) -> Block:
    """Return the block with ops marked that are elementwise, or a sum, though they do not look so.

    Those are put into `readers`, too.

    Dots that sum over nothing are products, one-hot scatters are comparisons; and what is too
    expensive to be computed twice may be read once.
    """
    zeros: set[Value] = set()
    ops: list[Op] = []
    marked: dict[Op, Op] = {}
    for op in block.ops:
        kind: type[Op] | None = None
        if op.name not in _LOOKED_AT:
            pass
        elif op.name == "broadcast_in_dim" and op.operands[0].literal is not None:
            zeros.update(op.results)
        elif op.name == "dot_general":
            kind = _dot_kind(op)
        elif profile.fuses_gathers and op.name in _FUSIBLE_MOVES:
            kind = Move
        elif op.name in SCATTERS and not profile.fuses_gathers:
            kind = Elementwise if op.operands[0] in zeros and _is_one_per_row(op) else None
        elif op.name in EXPENSIVE:
            reading = readers.get(op.results[0], ())
            is_single = len(reading) == 1 and reading[0].name in _READING
            kind = Elementwise if is_single else None
        if kind is None:
            ops.append(op)
            continue
        marked[op] = kind(*(getattr(op, f.name) for f in fields(op)))
        ops.append(marked[op])
    for v in {v for op in marked for v in op.operands}:
        readers[v] = [marked.get(reader, reader) for reader in readers[v]]
    return replace(block, ops=tuple(ops))


def _dot_kind(op: Op) -> type[Op] | None:
    """Return the kind of op that a dot is if it does not multiply matrices; None if it does."""
    (left, right), (left_batch, right_batch) = op.params["dimension_numbers"]
    a, b = op.operands
    if all(a.shape[d] == 1 for d in left):
        return Elementwise
    rows = math.prod(n for i, n in enumerate(a.shape) if i not in left and i not in left_batch)
    columns = math.prod(n for i, n in enumerate(b.shape) if i not in right and i not in right_batch)
    return Sum if rows == 1 or columns == 1 else None


def _is_one_per_row(op: Op) -> bool:
    result, updates = op.results[0], op.operands[2]
    batched = op.params["dimension_numbers"].operand_batching_dims
    rows = math.prod(result.shape[d] for d in batched)
    return updates.size == rows and len(batched) == len(result.shape) - 1

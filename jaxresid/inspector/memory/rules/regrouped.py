"""Find reshapes into groups of features that a TPU's compiler does not make.

Splitting the minor axis is a copy there. But where the groups are only asked for statistics over
other axes as well, as by `flax.linen.GroupNorm`, XLA sums over those first and splits what is left.
Measured with libtpu 0.0.52 on a v5e, with convolutions and dots around them, in float32 and
bfloat16. Where a value that is made in groups is both summed and merged again, as where
`haiku.GroupNorm` normalises, 2 of 13 programs have the copies: they are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from jaxresid.inspector.jaxpr.primitives import CASTS, VIEWS
from jaxresid.inspector.program.ops import Op, Value


def uncopied(
    ops: Sequence[Op],
    reshapes: Iterable[Op],
    readers: Mapping[Value, Sequence[Op]],
    is_elementwise: Callable[[Op], bool],
) -> set[Value]:
    """Return those results of reshapes across tiles that need no copy."""
    splits = {op for op in reshapes if _splits_minor_axis(op)}
    if not splits:
        return set()
    inside = _in_groups(ops, splits, is_elementwise)
    parents: dict[Op, Op] = {op: op for op in inside}
    copied: set[Op] = {op for op, is_mixed in inside.items() if is_mixed}
    merges: dict[Op, list[Op]] = {}
    ends: dict[Op, tuple[bool, bool]] = {}
    for op in reversed(inside):
        is_summed = is_merged = False
        reading = [reader for v in op.results for reader in readers.get(v, ())]
        for reader in reading:
            if reader in inside:
                is_summed |= ends[reader][0]
                is_merged |= ends[reader][1]
                parents[_root(parents, reader)] = _root(parents, op)
            elif reader.name == "reduce_sum" and _sums_rows(reader):
                is_summed = True
            elif _merges_minor_axes(reader):
                is_merged = True
                merges.setdefault(op, []).append(reader)
            else:
                copied.add(op)
        is_made = op not in splits and op.name not in CASTS
        if not reading or (is_made and is_summed and is_merged):
            copied.add(op)
        ends[op] = is_summed, is_merged
    # What is computed together is in one order.
    whole = {_root(parents, op) for op in copied}
    free = [op for op in inside if _root(parents, op) not in whole]
    uncopied_splits = {op.results[0] for op in free if op in splits}
    return uncopied_splits | {merge.results[0] for op in free for merge in merges.get(op, ())}


def _in_groups(
    ops: Iterable[Op], splits: Collection[Op], is_elementwise: Callable[[Op], bool]
) -> dict[Op, bool]:
    """Return the splits and the elementwise ops made of them, in program order.

    With each is whether it also reads what is as large and made otherwise, such as a product.
    """
    grouped: dict[Op, bool] = {}
    values: set[Value] = set()
    # Made of smaller arrays alone.
    spread: set[Value] = set()
    for op in ops:
        if op in splits:
            grouped[op] = False
            values.update(op.results)
        elif op.name == "broadcast_in_dim":
            spread.update(op.results)
        elif is_elementwise(op) and op.name not in VIEWS:
            size = max((v.size for v in op.results), default=0)
            large = {v for v in op.operands if v.literal is None and v.size >= size}
            if not values.isdisjoint(large):
                grouped[op] = bool(large - values - spread)
                values.update(op.results)
            elif large <= spread:
                spread.update(op.results)
    return grouped


def _root(parents: dict[Op, Op], op: Op) -> Op:
    while parents[op] is not op:
        parents[op] = op = parents[parents[op]]
    return op


def _splits_minor_axis(op: Op) -> bool:
    before, after = op.operands[0].shape, op.results[0].shape
    return len(after) == len(before) + 1 and after[:-2] == before[:-1]


def _merges_minor_axes(op: Op) -> bool:
    if op.name != "reshape":
        return False
    before, after = op.operands[0].shape, op.results[0].shape
    return len(after) == len(before) - 1 and after[:-1] == before[:-2]


def _sums_rows(op: Op) -> bool:
    """Return whether a sum is over other axes too than the two that a split makes."""
    shape = op.operands[0].shape
    return any(axis < len(shape) - 2 and shape[axis] > 1 for axis in op.params["axes"])

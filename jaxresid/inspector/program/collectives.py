"""Work out what an op of a split program has to exchange with other devices.

Each dim of an op is split as its result is; dims that are summed over, as all operands agree that
they are. An operand that is split otherwise is gathered first along the axes that split nothing of
it afterwards, which moves all but a device's own part of it; those that split another dim of it are
exchanged, so that no device ever has the whole. A sum over a split dim leaves partial sums: they
are all reduced, or, if the result is split along these axes, reduced and scattered. This is what
XLA's partitioner does for products and elementwise ops; it may choose otherwise where that moves
less, and moves collectives between ops. In the body of a `shard_map` the types are those of one
device, and what is exchanged is written there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Set
from dataclasses import replace
from typing import Any, NamedTuple

from jaxresid import jax_compat
from jaxresid.inspector.call.splits import Split, parts, shard
from jaxresid.inspector.jaxpr.primitives import REDUCTIONS
from jaxresid.inspector.jaxpr.while_loops.trips import WhileTrips
from jaxresid.inspector.program.dims import links
from jaxresid.inspector.program.ops import (
    BARRIER,
    Block,
    Collective,
    Exchange,
    InlineContext,
    Op,
    Value,
)

# What primitives exchange, without what their names say of types and of beginning.
_EXCHANGES: dict[str, Exchange] = {
    "all_gather": "all-gather",
    "all_to_all": "all-to-all",
    "pbroadcast": "collective-broadcast",
    "pmax": "all-reduce",
    "pmin": "all-reduce",
    "ppermute": "collective-permute",
    "psum": "all-reduce",
    "reduce_scatter": "reduce-scatter",
}


class Exchanged(NamedTuple):
    """What devices exchange of an operand or a result of an op.

    Attributes:
      split: how the whole array is split: the operand when it is gathered or exchanged, the result
        before parts of it are scattered.
    """

    value: Value
    split: Split
    collective: Collective


def exchanges(op: Op, splits: Mapping[Value, Split], sizes: Mapping[str, int]) -> list[Exchanged]:
    """Return what an op without bodies exchanges: first of its operands, then of its results."""
    if not op.results or op.name == BARRIER:
        return []
    wanted, summed = _wanted(op, splits)
    exchanged: list[Exchanged] = []

    for operand in dict.fromkeys(op.operands):
        split = splits.get(operand)
        if split is None or operand.literal is not None:
            continue
        needed = tuple(wanted.get((operand, d), ()) for d in range(len(split)))
        if any(axis not in kept for axes, kept in zip(split, needed, strict=True) for axis in axes):
            exchanged += split_anew(operand, split, needed, sizes)
    for result in op.results if summed else ():
        split = splits.get(result, ((),) * len(result.shape))
        scattered = {axis for axes in split for axis in axes if axis in summed}
        if scattered:
            whole = without(split, scattered)
            nbytes = _nbytes(result, whole, sizes)
            scatter = exchange("reduce-scatter", nbytes, scattered, sizes)
            exchanged.append(Exchanged(result, whole, scatter))
        if left_over := summed - scattered:
            nbytes = _nbytes(result, split, sizes)
            exchanged.append(
                Exchanged(result, split, exchange("all-reduce", nbytes, left_over, sizes))
            )
    return exchanged


def split_anew(
    value: Value, split: Split, wanted: Split, sizes: Mapping[str, int]
) -> list[Exchanged]:
    """Return what it takes until a value is split as wanted along those axes that split it now.

    Axes that split no dim afterwards are gathered, those that split another one exchanged.
    """
    exchanged, axes = [], _axes(wanted)
    if loose := _axes(split) - axes:
        split = without(split, loose)
        nbytes = _nbytes(value, split, sizes)
        exchanged.append(Exchanged(value, split, exchange("all-gather", nbytes, loose, sizes)))
    mine = _axes(split)
    if split != (kept := without(wanted, axes - mine)):
        moved = {a for old, new in zip(split, kept, strict=True) for a in {*old} ^ {*new}}
        nbytes = _nbytes(value, split, sizes)
        swap = exchange("all-to-all", nbytes, moved or mine, sizes)
        exchanged.append(Exchanged(value, kept, swap))
    return exchanged


def _axes(split: Split) -> set[str]:
    return {axis for axes in split for axis in axes}


def without(split: Split, axes: Set[str]) -> Split:
    """Return a split without some axes."""
    return tuple(tuple(a for a in dim if a not in axes) for dim in split)


def exchange(
    kind: Exchange, nbytes: int, axes: Iterable[Any], sizes: Mapping[Any, int]
) -> Collective:
    """Return what is exchanged along some axes of a mesh, whose last axis numbers neighbours."""
    apart, strides = 1, []
    wanted = set(axes)
    for axis in reversed(sizes):
        if axis in wanted:
            strides.append((sizes[axis], apart))
        apart *= sizes[axis]
    return Collective(kind, nbytes, parts(wanted, sizes), tuple(strides))


def sent_nbytes(block: Block, trips: WhileTrips) -> float:
    """Return the bytes that one device sends, in rings, while it runs a block once.

    Of a cond's branches that counts which sends most; a loop whose trips are not known counts once.
    """
    total = 0.0
    for op in block.ops:
        total += sum(each.moved_nbytes for each in op.collectives)
        inside = [sent_nbytes(body, trips) for body in op.bodies]
        if op.nest is None:
            total += max(inside, default=0)
        else:
            count = op.nest.length
            if count is None:
                counted = trips.of(op.eqn)
                count = 1 if counted is None else counted.count
            total += sum(inside) * count
    return total


def written(op: Op) -> Collective | None:
    """Return what a collective of JAX exchanges; None where that is not known.

    It is not known of a ragged exchange, nor along an axis of no `shard_map` around the op.
    """
    name = op.name.removesuffix("_start").removeprefix("unreduced_")
    kind = _EXCHANGES.get(name.removesuffix("_invariant").removesuffix("_reduced"))
    params = jax_compat.params(op.eqn)
    names = params.get("axes", params.get("axis_name"))
    names = names if isinstance(names, tuple | list) else (names,)
    sizes = _axis_sizes(op.context)
    # A number is a dim of the array, which `vmap` made of an axis.
    axes = [a for a in names if not isinstance(a, int)]
    if kind is None or not all(axis in sizes for axis in axes):
        return None
    groups = params.get("axis_index_groups")
    # A sum over a dim of the array comes before that over devices.
    arrays = op.results if kind in ("all-gather", "all-reduce") else op.operands
    collective = exchange(kind, sum(array.nbytes for array in arrays), axes, sizes)
    return replace(collective, devices=len(groups[0])) if groups else collective


def _axis_sizes(context: InlineContext | None) -> dict[Any, int]:
    """Return the sizes of the axes of all `shard_map`s around, by name, in the mesh's order."""
    sizes: dict[Any, int] = {}
    while context is not None and context.eqn is not None:
        if jax_compat.primitive_name(context.eqn) == "shard_map":
            sizes = {**jax_compat.params(context.eqn)["mesh"].shape, **sizes}
        context = context.parent
    return sizes


def _wanted(
    op: Op, splits: Mapping[Value, Split]
) -> tuple[dict[tuple[Value, int], tuple[str, ...]], set[str]]:
    results, operands = set(op.results), set(op.operands)
    groups = links(op).groups
    wanted: dict[tuple[Value, int], tuple[str, ...]] = {}
    summed: set[str] = set()
    for group in groups:
        if not any(v in results for v, _ in group):
            agreed = _common([splits.get(v, ((),) * len(v.shape))[d] for v, d in group])
            summed |= {*agreed}
            wanted |= dict.fromkeys(group, agreed)
    if op.name in REDUCTIONS:
        linked = {dim for group in groups for dim in group}
        for operand in operands:
            for d, axes in enumerate(splits.get(operand, ())):
                if (operand, d) not in linked:
                    summed |= {*axes}
                    wanted[operand, d] = axes
    if op.name == "gather":
        looked_up = _looked_up(op, splits)
        wanted |= looked_up
        summed |= {axis for axes in looked_up.values() for axis in axes}
    for group in groups:
        result_dims = [(v, d) for v, d in group if v in results]
        if result_dims:
            v, d = result_dims[0]
            axes = splits.get(v, ((),) * len(v.shape))[d]
            kept = tuple(axis for axis in axes if axis not in summed)
            wanted |= dict.fromkeys((dim for dim in group if dim[0] in operands), kept)
    return wanted, summed


def _looked_up(op: Op, splits: Mapping[Value, Split]) -> dict[tuple[Value, int], tuple[str, ...]]:
    """Return how the dims stay split along which a gather looks up single elements.

    Each device looks up what it has of them, and the results are added up; where they are larger
    than the operand, that is gathered instead.
    """
    operand, result = op.operands[0], op.results[0]
    if operand.size <= result.size:
        return {}
    single = op.params["dimension_numbers"].collapsed_slice_dims
    split = splits.get(operand, ())
    return {(operand, d): split[d] for d in single if split and split[d]}


def _common(dims: list[tuple[str, ...]]) -> tuple[str, ...]:
    first, *others = dims
    return tuple(axis for axis in first if all(axis in other for other in others))


def _nbytes(value: Value, split: Split, sizes: Mapping[str, int]) -> int:
    return value.itemsize * math.prod(shard(value.shape, split, sizes))

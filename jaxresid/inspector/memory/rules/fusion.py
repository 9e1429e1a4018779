"""Decide what a compiler computes inside what reads it, and what it materialises.

Cheap values are computed again in all that read them, as long as that reads and writes less than
materialising them would. A dot or convolution is finished, before it is written, by elementwise
ops that everything made of it leads through: all of them on a TPU, a sum on a GPU, whose dots read
arrays.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, replace

from jaxresid.inspector.memory.profile import Profile
from jaxresid.inspector.memory.rules.arrays import Arrays, joined, listed
from jaxresid.inspector.memory.rules.epilogues import epilogues, post_dominators_of, reading_ops
from jaxresid.inspector.memory.rules.layouts import cuts_tiles
from jaxresid.inspector.memory.rules.op_kinds import (
    ALL_REDUCTIONS,
    FUSED_ELEMENTWISE,
    Sum,
    is_elementwise,
    is_fusible,
    is_multiplied,
    is_view,
    marked,
    readers_of,
    scattered_into_sums,
)
from jaxresid.inspector.memory.rules.regrouped import uncopied
from jaxresid.inspector.program.ops import Block, Op, Value

# Scores of heads of 128 features are not computed again (v5e, libtpu 0.0.52).
_LANES = 128
# Of how many readers more is not asked; what these are computed in may be a few more.
_MAX_CONSUMERS = 4
_MOST_COUNTED = 64


@dataclass(frozen=True, slots=True, eq=False)
class Fusions:
    """What is decided for a block before it is known what is materialised.

    Attributes:
      block: the block with `Elementwise` and `Sum` ops.
      arrays: its ops whose results are materialised, whatever they are made of; without those of
        `materialized`.
      materialized: elementwise values that are materialised because that reads and writes less.
      fused: dots and convolutions that are not materialised, as something else finishes them.
      starts: what is materialised instead of a dot, and dots that finish themselves -> the dot that
        the kernel starts with.
      widths: reshapes that are copies -> bytes of each of their elements.
      views: its ops that only view their operand; those of `widths` are not among them.
    """

    block: Block
    arrays: set[Op]
    materialized: set[Value]
    fused: set[Value]
    starts: Mapping[Value, Op]
    widths: Mapping[Value, int]
    views: set[Op]

    def is_array(self, op: Op) -> bool:
        """Return whether the op's results are materialised, whatever they are made of."""
        return op in self.arrays or op.results[0] in self.materialized


def fusions(block: Block, profile: Profile) -> Fusions:
    """Return what is fused in a block, and what is materialised."""
    if profile.fuses_gathers:
        block = scattered_into_sums(block)
    readers = readers_of(block)
    block = marked(block, readers, profile)
    held = _always_materialized(block, profile)
    fusible = {op for op in block.ops if is_fusible(op)}
    post_dominators = post_dominators_of(block, held, readers, fusible)
    fused, starts = epilogues(block, held, post_dominators, readers, profile, fusible)
    recomputed = _recomputed_scores(block, held, readers, profile, fusible)
    widths = _retiled(block, readers) if profile.pads_to_tiles else {}

    def is_array(op: Op) -> bool:
        if not op.results:  # a callback
            return True
        first = op.results[0]
        if op in recomputed or starts.get(first) in recomputed:
            return False
        if first in widths or not held.isdisjoint(op.results):
            return True
        return first not in fused and (op not in fusible or first in starts)

    arrays = {op for op in block.ops if is_array(op)}
    views = {op for op in block.ops if is_view(op) and op.results[0] not in widths}
    decided = Fusions(block, arrays, set(), fused, starts, widths, views)
    # The traffic that an array saves depends on which of its readers are arrays.
    for _ in range(2):
        consumers = _consumer_kernels(block, held | decided.materialized, readers, fusible)
        materialized = _materialized_to_save_traffic(decided, consumers, post_dominators)
        if materialized == decided.materialized:
            break
        decided = replace(decided, materialized=materialized)
    return decided


def _is_of_matrix(op: Op) -> bool:
    """Return whether the op is a dot of a vector with a matrix, not with another vector."""
    if not isinstance(op, Sum):
        return False
    _, (batch, _) = op.params["dimension_numbers"]
    pairs: int = math.prod(op.operands[0].shape[d] for d in batch)
    return op.results[0].size > pairs


def _always_materialized(block: Block, profile: Profile) -> set[Value]:
    held = set(block.outputs)
    spread: dict[Value, Op] = {}
    for op in block.ops:
        if op.name == "barrier":
            held.update(op.operands)
        elif op.name == "broadcast_in_dim":
            spread[op.results[0]] = op
        elif not profile.computes_factors and (is_multiplied(op) or _is_of_matrix(op)):
            held.update(
                v for i, v in enumerate(op.operands[:2]) if not _is_same_in_batch(op, i, spread)
            )
        elif op.bodies:
            held.update(op.operands)
    for op in reversed(block.ops):
        if is_view(op) and op.results[0] in held:
            held.update(op.operands[:1])
    return held


def _is_same_in_batch(op: Op, which: int, spread: Mapping[Value, Op]) -> bool:
    """Return whether a dot reads the same for all of its batch, which is then no axis of it."""
    broadcast = spread.get(op.operands[which])
    if broadcast is None or op.name != "dot_general" or broadcast.operands[0].literal is not None:
        return False
    batch = op.params["dimension_numbers"][1][which]
    kept = broadcast.params["broadcast_dimensions"]
    small = broadcast.operands[0].shape
    new = [
        axis
        for axis, extent in enumerate(broadcast.results[0].shape)
        if axis not in kept or small[list(kept).index(axis)] != extent
    ]
    return bool(new) and set(new) <= set(batch)


def _recomputed_scores(
    block: Block,
    held: set[Value],
    readers: Mapping[Value, Sequence[Op]],
    profile: Profile,
    fusible: Container[Op],
) -> set[Op]:
    """Return the dots that are computed again in all that reads them, as they are too large.

    Those are the scores of an attention that nothing keeps for a backward pass: what is made of
    them is summed up along rows, and multiplied by one dot.
    """
    most = profile.largest_scores_nbytes
    if most is None:
        return set()
    return {
        op
        for op in block.ops
        if op.name == "dot_general"
        and is_multiplied(op)
        and op.results[0].nbytes > most
        and _summed_extent(op) < _LANES
        and _is_softmaxed(op, held, readers, fusible)
    }


def _summed_extent(op: Op) -> int:
    (left, _), _ = op.params["dimension_numbers"]
    return math.prod(op.operands[0].shape[d] for d in left)


def _is_softmaxed(
    op: Op,
    held: set[Value],
    readers: Mapping[Value, Sequence[Op]],
    fusible: Container[Op],
) -> bool:
    """Return whether one dot alone reads what is made of another, beside sums along its rows."""
    left, seen = [*op.results], set(op.results)
    dots: set[Op] = set()
    is_summed = False
    while left:
        value = left.pop()
        if value in held:
            return False
        for reader in readers.get(value, ()):
            if is_multiplied(reader):
                dots.add(reader)
                continue
            if reader not in fusible and reader.name not in ALL_REDUCTIONS:
                return False
            is_summed |= reader.name in ALL_REDUCTIONS
            left += [v for v in reader.results if v not in seen]
            seen.update(reader.results)
    return is_summed and len(dots) == 1


def _consumer_kernels(
    block: Block,
    arrays: set[Value],
    readers: Mapping[Value, Sequence[Op]],
    fusible: Container[Op],
) -> dict[Op, frozenset[Op]]:
    """Return, for each op that leads on, the kernels that compute it if it is not materialised.

    They are counted up to a few.
    """
    consumer_kernels: dict[Op, frozenset[Op]] = {}
    # The kernels that compute what a reader computes.
    computing: dict[Op, frozenset[Op]] = {}
    for op in reversed(block.ops):
        if op not in fusible:
            computing[op] = frozenset((op,))
            continue
        consumers: frozenset[Op] = frozenset()
        for reader in reading_ops(op, readers):
            more = computing[reader]
            is_few = 0 < len(consumers) <= _MOST_COUNTED - len(more)
            consumers = consumers | more if is_few else more
            if len(consumers) >= _MAX_CONSUMERS:
                break
        consumer_kernels[op] = consumers
        computing[op] = consumers if arrays.isdisjoint(op.results) else frozenset((op,))
    return consumer_kernels


def _materialized_to_save_traffic(
    fusions: Fusions,
    consumer_kernels: Mapping[Op, frozenset[Op]],
    post_dominators: Mapping[Op, Op | None],
) -> set[Value]:
    """Return the elementwise values for which less is read and written if they are materialised.

    With r bytes to compute each of its bytes from, and k kernels that read it, computing it each
    time takes r k, materialising it r + 1 + k. And a cast to a narrower type is not left to several
    dots. What everything made of a value leads through computes it once.
    """
    materialized: set[Value] = set()
    roots: dict[Value, Arrays] = {v: (v,) for v in fusions.block.inputs}
    arrays, views = fusions.arrays, fusions.views
    for op in fusions.block.ops:
        if op in views or op.name == "barrier":
            for a, b in zip(op.operands, op.results, strict=False):
                roots[b] = roots.get(a, ())
            continue
        if op in arrays or op.bodies:
            for v in op.results:
                roots[v] = (v,)
            continue
        operands = op.operands
        sources = joined([roots[a] for a in operands if a in roots])
        consumers = consumer_kernels.get(op, ())
        if (
            len(consumers) > 1
            and post_dominators[op] is None
            and is_elementwise(op)
            and op.results[0] not in fusions.fused
        ):
            (v,) = op.results
            if "float" in v.dtype and _saves_traffic(v, listed(sources), consumers):
                materialized.add(v)
                sources = (v,)
        for v in op.results:
            roots[v] = sources
    return materialized


def _saves_traffic(value: Value, sources: Sequence[Value], consumers: Collection[Op]) -> bool:
    size, nbytes = value.size, value.nbytes
    if not nbytes:
        return False
    large = [r for r in sources if r.size >= size]
    is_narrowed = any(r.itemsize > value.itemsize for r in large)
    if is_narrowed and sum(is_multiplied(s) for s in consumers) > 1:
        return True
    return (sum([r.nbytes for r in large]) / nbytes - 1) * (len(consumers) - 1) >= 2


def _retiled(block: Block, readers: Mapping[Value, Sequence[Op]]) -> dict[Value, int]:
    """Return the reshapes that cut tiles and that not only dots read, with their elements' bytes.

    A TPU computes in float32, and casts what it reads in that type before it copies it.
    """
    widths: dict[Value, int] = {}
    reshapes = [op for op in block.ops if op.name == "reshape" and cuts_tiles(op)]
    free = uncopied(block.ops, reshapes, readers, is_elementwise)
    for op in reshapes:
        (v,) = op.results
        reading = readers.get(v, ())
        if v not in free and any(
            r.name in FUSED_ELEMENTWISE or r.name in ALL_REDUCTIONS for r in reading
        ):
            casts = [r.results[0].itemsize for r in reading if r.name == "convert_element_type"]
            widths[v] = max([v.itemsize, *casts])
    return widths

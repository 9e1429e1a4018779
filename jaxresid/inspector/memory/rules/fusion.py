"""Decide what a compiler computes inside what reads it, and what it materialises.

Cheap values are computed again in all that read them, as long as that reads and writes less than
materialising them would. A dot or convolution is finished, before it is written, by elementwise
ops that everything made of it leads through: all of them on a TPU, a sum on a GPU, whose dots read
arrays.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Container, Mapping, Sequence
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
from jaxresid.inspector.memory.rules.arrays import Arrays, joined, listed
from jaxresid.inspector.memory.rules.layouts import cuts_tiles
from jaxresid.inspector.memory.rules.regrouped import uncopied
from jaxresid.inspector.program.ops import CUT, Block, Op, Value

# Not measured: these are taken for kernels of their own, which nothing is fused with.
_UNMEASURED = frozenset(
    {
        *("acosh", "asinh", "atanh"),
        *("ragged_dot_general", "scaled_matmul", "scaled_matmul_wrapper"),
    }
)
# Too expensive to be computed twice.
_EXPENSIVE = frozenset({"sin", "cos", "tan", "erf", "erfc", "sinh", "cosh", "asin", "acos"})
_ELEMENTWISE = (ELEMENTWISE | CASTS | {"copy"}) - _EXPENSIVE - _UNMEASURED
_MOVES = FILLS | PARTS | {"pad", "rev", "device_put", CUT}
MULTIPLIED = CONTRACTIONS - _UNMEASURED
_REDUCTIONS = REDUCTIONS | ARG_REDUCTIONS
# What takes in an expensive value that nothing else reads.
_READING = _ELEMENTWISE | _REDUCTIONS | MULTIPLIED
# Too expensive as well, but what is made of them may be written instead: a dropout's mask.
_RANDOM = frozenset({"random_bits", "threefry2x32"})
# Computed inside what reads them, by some compilers.
_FUSIBLE_MOVES = frozenset({"gather", "concatenate"})
# Calls into a library, which read arrays and write the type that they are asked for.
LIBRARY = frozenset({"gather", "sort", "fft", "cholesky", "triangular_solve"})
# A scatter into zeros that is added to an array is one into that array.
_ADDED = frozenset({"scatter-add", "broadcast_in_dim"})
_SUMS = frozenset({"add", "add_any"})
_ZERO = frozenset({"0", "0.0"})
# What may be marked as something else than it looks like, and what tells.
_LOOKED_AT = _EXPENSIVE | _FUSIBLE_MOVES | SCATTERS | {"broadcast_in_dim", "dot_general"}
# Scores of heads of 128 features are not computed again (v5e, libtpu 0.0.52).
_LANES = 128
# No fusion has more ops than this between two ends.
_MAX_STEPS = 64
# Of how many readers more is not asked; what these are computed in may be a few more.
_MAX_CONSUMERS = 4
_MOST_COUNTED = 64


@dataclass(slots=True, eq=False)
class Elementwise(Op):
    """An op of another name that is computed as elementwise ones are."""


@dataclass(slots=True, eq=False)
class Move(Op):
    """A gather or concatenation that is computed inside what reads it."""


@dataclass(slots=True, eq=False)
class Sum(Op):
    """A dot with a vector: products are summed in the type that it is written in."""


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
        block = _scattered_into_sums(block)
    readers = _readers(block)
    block = _simplified(block, readers, profile)
    held = _always_materialized(block, profile)
    fusible = {op for op in block.ops if is_fusible(op)}
    post_dominators = _post_dominators(block, held, readers, fusible)
    fused, starts = _epilogues(block, held, post_dominators, readers, profile, fusible)
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


def is_multiplied(op: Op) -> bool:
    """Return whether the op runs on the matrix unit."""
    return op.name in MULTIPLIED and not isinstance(op, Elementwise | Sum)


def is_elementwise(op: Op) -> bool:
    """Return whether the op is elementwise, or computed as elementwise ops are."""
    return op.name in _ELEMENTWISE or isinstance(op, Elementwise)


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


def _parts_factor(dot: Op, view: Op) -> bool:
    """Return whether a transpose of a dot puts rows among columns, not rows for columns.

    A library writes either the rows of the first factor by those of the second, or the other way.
    """
    if dot.name != "dot_general" or view.operands[0] not in dot.results or not reorders(view):
        return False
    (left, _), (batch, _) = dot.params["dimension_numbers"]
    shape = view.operands[0].shape
    rows = len(batch) + len(dot.operands[0].shape) - len(left) - len(batch)
    axes = range(len(shape))
    swapped = [*axes[: len(batch)], *axes[rows:], *axes[len(batch) : rows]]
    permutation = view.params["permutation"]
    return [a for a in permutation if shape[a] > 1] != [a for a in swapped if shape[a] > 1]


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


def _scattered_into_sums(block: Block) -> Block:
    """Return a block whose scatters into zeros write into what their results are added to.

    So there are no zeros of that size, as in the gradient of logits from which those of the labels
    are picked.
    """
    makers = {op.results[0]: op for op in block.ops if op.name in _ADDED}
    if not any(op.name == "scatter-add" for op in makers.values()):
        return block
    readers = _readers(block)
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


def _readers(block: Block) -> dict[Value, list[Op]]:
    readers: defaultdict[Value, list[Op]] = defaultdict(list)
    for op in block.ops:
        for v in op.operands:
            readers[v].append(op)
    return dict(readers)


def _reading(op: Op, readers: Mapping[Value, Sequence[Op]]) -> Sequence[Op]:
    results = op.results
    if len(results) == 1:
        return readers.get(results[0], ())
    return [reader for v in results for reader in readers.get(v, ())]


def _simplified(block: Block, readers: dict[Value, list[Op]], profile: Profile) -> Block:
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
        elif op.name in _EXPENSIVE:
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


def _is_of_matrix(op: Op) -> bool:
    """Return whether the op is a dot of a vector with a matrix, not with another vector."""
    if not isinstance(op, Sum):
        return False
    _, (batch, _) = op.params["dimension_numbers"]
    pairs: int = math.prod(op.operands[0].shape[d] for d in batch)
    return op.results[0].size > pairs


def _is_one_per_row(op: Op) -> bool:
    result, updates = op.results[0], op.operands[2]
    batched = op.params["dimension_numbers"].operand_batching_dims
    rows = math.prod(result.shape[d] for d in batched)
    return updates.size == rows and len(batched) == len(result.shape) - 1


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


def _post_dominators(
    block: Block,
    held: set[Value],
    readers: Mapping[Value, Sequence[Op]],
    fusible: Container[Op],
) -> dict[Op, Op | None]:
    """Return, for each op, the first op that everything made of its results leads through.

    It is None where there is no such op.
    """
    post_dominators: dict[Op, Op | None] = {}
    depth: dict[Op, int] = {}
    for op in reversed(block.ops):
        reading = _reading(op, readers)
        if not reading or not held.isdisjoint(op.results):
            post_dominators[op], depth[op] = None, 0
            continue
        meet: Op | None = reading[0]
        for other in reading[1:]:
            if meet is None:
                break
            if other is not meet:
                meet = _common_post_dominator(meet, other, post_dominators, depth, fusible)
        post_dominators[op] = meet
        depth[op] = depth[meet] + 1 if meet is not None and meet in fusible else 1
    return post_dominators


def _common_post_dominator(
    a: Op | None,
    b: Op | None,
    post_dominators: Mapping[Op, Op | None],
    depth: Mapping[Op, int],
    fusible: Container[Op],
) -> Op | None:
    for _ in range(_MAX_STEPS):
        if a is b or a is None or b is None:
            break
        if a in fusible and (depth[a] >= depth[b] or b not in fusible):
            a = post_dominators[a]
        elif b in fusible:
            b = post_dominators[b]
        else:
            return None
    return a if a is b else None


def _epilogues(
    block: Block,
    held: set[Value],
    post_dominators: Mapping[Op, Op | None],
    readers: Mapping[Value, Sequence[Op]],
    profile: Profile,
    fusible: Container[Op],
) -> tuple[set[Value], dict[Value, Op]]:
    """Return `Fusions.fused` and `Fusions.starts`.

    What finishes a dot must read nothing that comes later than the dot. A cast to a wider type at
    the end is left to the readers, as it is computed again for free. On a TPU so is what is made of
    it in the wider type, if that takes no other large array and is not reduced, as for a softmax.
    """
    fused: set[Value] = set()
    starts: dict[Value, Op] = {}
    ready: dict[Value, int] = {}
    # The arrays as large as a value that it takes to compute it, up to two.
    made_of: dict[Value, frozenset[Value]] = {}
    for i, op in enumerate(block.ops):
        at = i
        if op in fusible or op.name in _EXPENSIVE:
            at = max([ready.get(v, -1) for v in op.operands], default=-1)
        ready.update(dict.fromkeys(op.results, at))
        if profile.epilogue is not None:
            continue  # it is not asked
        for v in op.results:
            if op not in fusible:
                made_of[v] = frozenset((v,))
                continue
            size = v.size
            large = [
                frozenset((o,)) if (arrays := made_of.get(o)) is None else arrays
                for o in op.operands
                if o.literal is None and o.size >= size
            ]
            if len(large) == 1:
                made_of[v] = large[0]
            else:
                made_of[v] = frozenset([*frozenset[Value]().union(*large)][:2])

    def is_left_to_readers(value: Value, dot: Value) -> bool:
        if profile.epilogue is not None or made_of[value] != {dot}:
            return False
        return not any(reader.name in _REDUCTIONS for reader in readers.get(value, ()))

    for i, op in enumerate(block.ops):
        is_random = op.name in _RANDOM
        if not (is_multiplied(op) or is_random) or op.results[0] in held:
            continue
        v = op.results[0]
        end, after = v, post_dominators.get(op)
        while after is not None and after.results and ready[after.results[0]] == i:
            (more,) = after.results[:1]
            is_cast = after.name == "convert_element_type"
            if more.size != v.size or (is_cast and more in held):
                break
            if is_cast:
                end = more if more.itemsize < end.itemsize else end
            elif is_elementwise(after) or after.name in _EXPENSIVE:
                if not (is_random or profile.epilogue is None or after.name in profile.epilogue):
                    break
                is_wider = more.itemsize > end.itemsize
                if not (is_wider and is_left_to_readers(more, v)):
                    end = more
            elif not is_view(after) or (profile.epilogue is not None and _parts_factor(op, after)):
                break
            after = post_dominators.get(after)
        if end is not v:
            fused.add(v)
        starts[end] = op
    return fused, starts


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
            if reader not in fusible and reader.name not in _REDUCTIONS:
                return False
            is_summed |= reader.name in _REDUCTIONS
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
        for reader in _reading(op, readers):
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
        if v not in free and any(r.name in _ELEMENTWISE or r.name in _REDUCTIONS for r in reading):
            casts = [r.results[0].itemsize for r in reading if r.name == "convert_element_type"]
            widths[v] = max([v.itemsize, *casts])
    return widths

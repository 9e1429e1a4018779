"""Find what finishes a dot before it is written: elementwise ops that all of it leads through."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from jaxresid.inspector.memory.profile import Profile
from jaxresid.inspector.memory.rules.op_kinds import (
    ALL_REDUCTIONS,
    EXPENSIVE,
    RANDOM,
    is_elementwise,
    is_multiplied,
    is_view,
    reorders,
)
from jaxresid.inspector.program.ops import Block, Op, Value

# No fusion has more ops than this between two ends.
_MAX_STEPS = 64


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


def reading_ops(op: Op, readers: Mapping[Value, Sequence[Op]]) -> Sequence[Op]:
    """Return the ops that read what an op makes."""
    results = op.results
    if len(results) == 1:
        return readers.get(results[0], ())
    return [reader for v in results for reader in readers.get(v, ())]


def post_dominators_of(
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
        reading = reading_ops(op, readers)
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


def epilogues(
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
        if op in fusible or op.name in EXPENSIVE:
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
        return not any(reader.name in ALL_REDUCTIONS for reader in readers.get(value, ()))

    for i, op in enumerate(block.ops):
        is_random = op.name in RANDOM
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
            elif is_elementwise(after) or after.name in EXPENSIVE:
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

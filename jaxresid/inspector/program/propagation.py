"""Work out how the values of a program are split over a mesh, from what is known of some of them.

This follows Shardy's propagation: linked dims (see `dims`) are split alike; of an op's dims that
want one axis, those go first whose larger array has it; no axis splits two dims of one array. Ops
wait in a stack, in program order, and what reads or makes a value waits again when that is split,
on top. It is done in stages, each of which adds ops, or dims of ops. Costs play no part, so a
compiler may decide otherwise.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from jaxresid.inspector.call.splits import Split, parts
from jaxresid.inspector.program.dims import Dim, Links, flows, links
from jaxresid.inspector.program.ops import Block, Op, Value

# How a value is split, and the dims for which that may change.
PartialSplit = tuple[Split, frozenset[int]]

# The stages: ops that work element by element, views and what loops hand on, at first only where
# nothing else reads their operands; dims that results have; dims that are summed over; broadcasts.
_STAGES = _ALONE, _ELEMENTS, _KEPT, _SUMMED, _BROADCAST = range(5)
_VIEWS = frozenset({"reshape", "squeeze", "transpose"})
_SLICES = frozenset({"dynamic_slice", "dynamic_update_slice"})


def propagated(
    block: Block,
    fixed: Mapping[Value, Split],
    sizes: Mapping[str, int],
    local: frozenset[Op] = frozenset(),
    partly: Mapping[Value, PartialSplit] = MappingProxyType({}),
) -> dict[Value, Split]:
    """Return the splits of the values of a block and of its bodies.

    A value that is not in it is whole.

    Args:
      fixed: values whose splits stay as they are.
      local: ops of one device, such as those of a `shard_map` body; nothing spreads over them.
      partly: values whose splits stay as they are, except for some dims.
    """
    spread = _Propagation(fixed, sizes, partly)
    steps = [step for step in _steps(block, local) if step.groups]
    for stage in _STAGES:
        spread.settle(steps, stage)
    return {v: split for v, split in spread.splits.items() if any(split)}


@dataclass(frozen=True, slots=True)
class _Group:
    """Dims that are one and the same dim.

    Attributes:
      stages: for each the stage from which on it may be split as the others are.
    """

    dims: tuple[Dim, ...]
    stages: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Step:
    """What spreads splits at once: an op, or what a loop hands on."""

    groups: tuple[_Group, ...]
    results: frozenset[Value]
    operands: tuple[Value, ...]


def _steps(block: Block, local: frozenset[Op]) -> Iterator[_Step]:
    uses = Counter(v for op in block.ops for v in op.operands) + Counter(block.outputs)
    for op in block.ops:
        if op in local:
            continue
        if not op.bodies:
            linked = links(op)
            # To compilers there is a broadcast before the op.
            for value in linked.repeated:
                yield _step(_repeated(value, linked.groups), op.results)
            yield _step(_groups(op, linked, uses), op.results)
            continue
        through = flows(op)
        for part in through.sliced:
            yield _part(part)
        for body in op.bodies:
            yield from _steps(body, local)
        for part in through.stacked:
            yield _part(part)
        # Behind the body, so that its ops come before what it is handed.
        for handed in through.handed:
            groups = [_Group(dims, (_ALONE,) * len(dims)) for dims in map(_arrays, handed)]
            yield _step(groups, [v for v, _ in handed[0][1:]] if handed else [])


def _part(dims: tuple[Dim, ...]) -> _Step:
    """Return the step of a slice of a stack, or of the stack of a part, the second of two dims."""
    arrays = _arrays(dims)
    stages = (_KEPT, _ELEMENTS) if len(arrays) > 1 else (_KEPT,) * len(arrays)
    return _step([_Group(arrays, stages)], [dims[1][0]])


def _step(groups: Iterable[_Group], made_values: Iterable[Value]) -> _Step:
    linked = tuple(group for group in groups if len(group.dims) > 1)
    results = frozenset(made_values)
    values = dict.fromkeys(v for group in linked for v, _ in group.dims)
    return _Step(linked, results, tuple(v for v in values if v not in results))


def _arrays(dims: Iterable[Dim]) -> tuple[Dim, ...]:
    return tuple(dim for dim in dims if dim[0].literal is None)


def _groups(op: Op, linked: Links, uses: Mapping[Value, int]) -> Iterator[_Group]:
    is_read_twice = any(uses[v] > 1 for v in op.operands if v.shape and v.literal is None)
    passes = _ELEMENTS if is_read_twice else _ALONE
    for group in linked.groups:
        dims = _arrays(dim for dim in group if dim[0] not in linked.repeated)
        yield _Group(dims, tuple(_stages(op, dims, linked.is_plain, passes)))


def _repeated(value: Value, groups: Iterable[Sequence[Dim]]) -> Iterator[_Group]:
    """Yield the dims of an operand that are not repeated, each with that of the result."""
    for group in groups:
        mine = [dim for dim in group if dim[0] is value]
        if mine and value.literal is None:
            yield _Group((mine[0], group[-1]), (_KEPT, _BROADCAST))


def _stages(op: Op, dims: Sequence[Dim], is_plain: bool, passes: int) -> Iterator[int]:
    is_kept = any(v in op.results for v, _ in dims)
    for value, _ in dims:
        is_result = value in op.results
        if is_plain or op.name in _VIEWS or _adds_dims(op) or (op.name in _SLICES and is_result):
            yield passes
        elif op.name == "broadcast_in_dim" and is_result:
            yield _BROADCAST
        else:
            yield _KEPT if is_kept else _SUMMED


def _adds_dims(op: Op) -> bool:
    """Return whether a broadcast only adds dims of one element, which compilers take for a view."""
    return op.name == "broadcast_in_dim" and op.operands[0].size == op.results[0].size


class _Propagation:
    def __init__(
        self,
        fixed: Mapping[Value, Split],
        sizes: Mapping[str, int],
        partly: Mapping[Value, PartialSplit],
    ) -> None:
        self.splits: dict[Value, Split] = {v: split for v, (split, _) in partly.items()}
        self.splits.update(fixed)
        self._known = frozenset(fixed)
        self._partly = partly
        self._sizes = sizes

    def settle(self, steps: Sequence[_Step], stage: int) -> None:
        readers, makers = defaultdict[Value, list[int]](list), defaultdict[Value, list[int]](list)
        for n, step in enumerate(steps):
            for v in step.operands:
                readers[v].append(n)
            for v in step.results:
                makers[v].append(n)
        waiting = list(reversed(range(len(steps))))
        held = set(waiting)
        while waiting:
            n = waiting.pop()
            held.discard(n)
            for v in dict.fromkeys(self._spread(steps[n], stage)):
                for other in (*makers[v], *reversed(readers[v])):
                    if other != n and other not in held:
                        waiting.append(other)
                        held.add(other)

    def _spread(self, step: _Step, stage: int) -> Iterator[Value]:
        # The wish of the larger array counts, so it goes first.
        for group in sorted(step.groups, key=self._priority, reverse=True):
            yield from self._shared(group, stage)

    def _priority(self, group: _Group) -> int:
        splits = self.splits
        return max((v.size for v, d in group.dims if v in splits and splits[v][d]), default=0)

    def _shared(self, group: _Group, stage: int) -> Iterator[Value]:
        splits = self.splits
        wishes = [(v.size, splits[v][d]) for v, d in group.dims if v in splits and splits[v][d]]
        if not wishes:
            return
        axes = max(wishes, key=lambda wish: (len(wish[1]), wish[0]))[1]
        for (v, d), first in zip(group.dims, group.stages, strict=True):
            is_open = v not in self._known and (v not in self._partly or d in self._partly[v][1])
            if first <= stage and is_open and self._offered(v, d, axes):
                yield v

    def _offered(self, value: Value, dim: int, axes: tuple[str, ...]) -> bool:
        split = self.splits.get(value, ((),) * len(value.shape))
        mine = split[dim]
        if axes[: len(mine)] != mine or len(axes) == len(mine):
            return False
        taken = {axis for d, other in enumerate(split) if d != dim for axis in other}
        free = list(axes)
        while free and (taken.intersection(free) or value.shape[dim] % parts(free, self._sizes)):
            free.pop()
        if len(free) <= len(mine):
            return False
        self.splits[value] = (*split[:dim], tuple(free), *split[dim + 1 :])
        return True

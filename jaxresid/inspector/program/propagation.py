"""Work out how the values of a program are split over a mesh, from what is known of some of them.

This follows Shardy's propagation: linked dims (see `dims`) are split alike, elementwise ops first,
then all ops, forwards and backwards until nothing changes; no axis splits two dims of one array; of
two conflicting splits, that of the larger array wins. Costs play no part, so a compiler may decide
otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from jaxresid.inspector.call.splits import Split, parts
from jaxresid.inspector.program.dims import Dim, links
from jaxresid.inspector.program.ops import Block, Op, Value

# How a value is split, and the dims for which that may change.
PartialSplit = tuple[Split, frozenset[int]]

# Sweeps over the program in each direction; deeper chains of loops than this are not met.
_SWEEPS = 8


def propagated(
    block: Block,
    known: Mapping[Value, Split],
    sizes: Mapping[str, int],
    local: frozenset[Op] = frozenset(),
    partly: Mapping[Value, PartialSplit] = MappingProxyType({}),
) -> dict[Value, Split]:
    """Return the splits of the values of a block and of its bodies.

    A value that is not in it is whole.

    Args:
      block: the block of the whole program.
      known: values whose splits stay as they are.
      sizes: the sizes of the mesh's axes by name.
      local: ops of one device, such as those of a `shard_map` body; nothing spreads over them.
      partly: values whose splits stay as they are, except for some dims.
    """
    spread = _Propagation(known, sizes, partly)
    steps = [*_steps(block, local)]
    for groups in ([s.groups for s in steps if s.is_plain], [s.groups for s in steps]):
        for _ in range(_SWEEPS):
            changed = spread.over(groups)
            changed |= spread.over(groups[::-1])
            if not changed:
                break
    return {v: split for v, split in spread.splits.items() if any(split)}


@dataclass(frozen=True, slots=True)
class _Step:
    groups: tuple[tuple[Dim, ...], ...]
    is_plain: bool


def _steps(block: Block, local: frozenset[Op]) -> Iterator[_Step]:
    for op in block.ops:
        if op in local:
            continue
        found = links(op)
        groups = [tuple(d for d in g if d[0].literal is None) for g in found.groups]
        step = _Step(tuple(g for g in groups if len(g) > 1), found.is_plain)
        if op.bodies:
            yield step
            for body in op.bodies:
                yield from _steps(body, local)
        yield step


class _Propagation:
    def __init__(
        self,
        known: Mapping[Value, Split],
        sizes: Mapping[str, int],
        partly: Mapping[Value, PartialSplit],
    ) -> None:
        self.splits: dict[Value, Split] = {v: split for v, (split, _) in partly.items()}
        self.splits.update(known)
        self._known = frozenset(known)
        self._partly = partly
        self._sizes = sizes

    def over(self, steps: Sequence[tuple[tuple[Dim, ...], ...]]) -> bool:
        """Spread splits over all groups once, and return whether any split changed."""
        changed = False
        for groups in steps:
            # The wish of the larger array counts, so it goes first.
            for group in sorted(groups, key=self._priority, reverse=True):
                changed |= self._shared(group)
        return changed

    def _priority(self, group: tuple[Dim, ...]) -> int:
        splits = self.splits
        return max((v.size for v, d in group if v in splits and splits[v][d]), default=0)

    def _shared(self, group: tuple[Dim, ...]) -> bool:
        splits = self.splits
        wishes = [(v.size, splits[v][d]) for v, d in group if v in splits and splits[v][d]]
        if not wishes:
            return False
        axes = max(wishes, key=lambda wish: (len(wish[1]), wish[0]))[1]
        changed = False
        for v, d in group:
            if v not in self._known and (v not in self._partly or d in self._partly[v][1]):
                changed |= self._offered(v, d, axes)
        return changed

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

"""Find reshapes into groups of features that a TPU's compiler does not make.

Splitting the minor axis is a copy there. But where the groups are only asked for statistics over
other axes as well, as by `flax.linen.GroupNorm`, XLA sums over those first and splits what is left.
Measured with libtpu 0.0.52 on a v5e, with convolutions and dots around them, in float32 and
bfloat16. Where a value that is made in groups is both summed and split no more, as where
`haiku.GroupNorm` normalises, some programs have the copies and others not: they are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from jaxresid.inspector.jaxpr.primitives import CASTS, VIEWS
from jaxresid.inspector.program.ops import Op, Value


def uncopied(
    reshapes: Collection[Op],
    readers: Mapping[Value, Sequence[Op]],
    is_elementwise: Callable[[Op], bool],
) -> set[Value]:
    """Return those results of reshapes across tiles that need no copy.

    Args:
      reshapes: the reshapes across tiles.
      readers: what reads each value of their block.
      is_elementwise: whether an op is computed as elementwise ones are.
    """
    found: dict[Op, _Groups] = {}
    owners: dict[Op, _Groups] = {}
    for op in reshapes:
        if _splits_minor_axis(op):
            found[op] = groups = _Groups(op, readers, is_elementwise)
            for each in groups.computed:
                owners.setdefault(each, groups).join(groups)
    whole = [groups for groups in found.values() if groups.root().is_free]
    return {op.results[0] for groups in whole for op in (groups.split, *groups.merges)}


def _splits_minor_axis(op: Op) -> bool:
    before, after = op.operands[0].shape, op.results[0].shape
    return len(after) == len(before) + 1 and after[:-2] == before[:-1]


class _Groups:
    """What is computed in groups of one value's features.

    Attributes:
      split: the reshape into groups.
      computed: the elementwise ops in groups that are made of it.
      merges: the reshapes back.
      is_free: whether all of that is possible without a copy; of a root, for all that joined it.
    """

    def __init__(
        self,
        split: Op,
        readers: Mapping[Value, Sequence[Op]],
        is_elementwise: Callable[[Op], bool],
    ) -> None:
        self.split = split
        self.computed: dict[Op, tuple[bool, bool]] = {}
        self.merges: list[Op] = []
        self.is_free = True
        self._parent: _Groups | None = None
        self._readers, self._is_elementwise = readers, is_elementwise
        for reader in readers.get(split.results[0], ()):
            self._look(reader)
        is_both = any(all(ends) for op, ends in self.computed.items() if op.name not in CASTS)
        self.is_free = self.is_free and not is_both

    def root(self) -> _Groups:
        """Return what all that share an op with this have joined."""
        return self if self._parent is None else self._parent.root()

    def join(self, other: _Groups) -> None:
        """Take two for one, of which a copy in one is a copy in the other."""
        one, two = self.root(), other.root()
        if one is not two:
            one.is_free = one.is_free and two.is_free
            two._parent = one

    def _look(self, op: Op) -> tuple[bool, bool]:
        """Return whether what an op computes is summed in groups, and whether it is merged."""
        shape = self.split.results[0].shape
        if op.name == "reduce_sum":
            others = op.params["axes"]
            self.is_free &= any(axis < len(shape) - 2 and shape[axis] > 1 for axis in others)
            return True, False
        if op.name == "reshape" and op.results[0].shape == self.split.operands[0].shape:
            self.merges.append(op)
            return False, True
        if op in self.computed:
            return self.computed[op]
        is_in_groups = self._is_elementwise(op) and all(v.shape == shape for v in op.results)
        if not is_in_groups or op.name in VIEWS:
            self.is_free = False
            return False, False
        ends = [self._look(reader) for v in op.results for reader in self._readers.get(v, ())]
        self.is_free &= bool(ends)
        self.computed[op] = any(a for a, _ in ends), any(b for _, b in ends)
        return self.computed[op]

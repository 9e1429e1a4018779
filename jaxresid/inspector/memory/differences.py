"""Find in which stretches the kernels of two programs differ, and make such a change elsewhere.

Of layers that are alike, each is changed alike: what a change made of the kernels of one is made of
those of another, where the kernels around are the same but for the arrays' names.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from jaxresid.inspector.jaxpr.nesting import Nest
from jaxresid.inspector.jaxpr.phases import BACKWARD
from jaxresid.inspector.memory.rules.kernels import Kernels, array_nbytes
from jaxresid.inspector.program.ops import Block, Op, Value

# So many kernels on either side of a change have to be alike too.
_AROUND = 4


@dataclass(frozen=True, slots=True)
class KernelRange:
    """The numbers of kernels, and of those in their place in another program."""

    before: range
    after: range

    @property
    def around(self) -> range:
        """The numbers of the replaced kernels, and of those on either side."""
        return range(self.before.start - _AROUND, self.before.stop + _AROUND)


@dataclass(frozen=True, eq=False)
class Difference:
    """What is to be changed in the kernels of a program so that they are those of another.

    Attributes:
      stretches: where they differ, in order.
      pairs: by the arrays of the other those of the base that they correspond to.
    """

    base: Kernels
    changed: Kernels
    stretches: tuple[KernelRange, ...]
    pairs: Mapping[Value, Value]

    @functools.cached_property
    def _makers(self) -> dict[Value, int]:
        return {v: i for i, op in enumerate(self.base.ops) for v in op.results}

    @functools.cached_property
    def _readers(self) -> dict[Value, list[int]]:
        readers: dict[Value, list[int]] = {}
        for i, op in enumerate(self.base.ops):
            for v in op.operands:
                readers.setdefault(v, []).append(i)
        return readers

    @functools.cached_property
    def _sources(self) -> tuple[KernelRange, ...]:
        """Where the base makes what the other reads in the stretches, and not near any of them."""
        near = {i for s in self.stretches for i in s.around}
        read = (
            self.pairs.get(v)
            for s in self.stretches
            for op in self.changed.ops[s.after.start : s.after.stop]
            for v in op.operands
        )
        places = {self._makers[v] for v in read if v in self._makers} - near
        return tuple(KernelRange(range(i, i), range(i, i)) for i in sorted(places))

    @functools.cached_property
    def _outputs(self) -> frozenset[Value]:
        return frozenset(self.base.outputs)

    def moved(self, here: int, there: int) -> Kernels | None:
        """Return the base with the change in another place; None where the base is not alike there.

        Args:
          here: the number of a kernel of the base in or near one of the stretches.
          there: the number of the kernel that is in the other place what that one is here.
        """
        if not self.stretches:
            return self.base
        near = [s for s in self.stretches if here in s.around]
        if len(near) != 1:
            return None
        shifts, twins = {near[0]: there - here}, Pairs(self.base, self.base)
        if not self._pair(shifts, twins):
            return None
        return self._changed(shifts, twins.there)

    def _pair(self, shifts: dict[KernelRange, int], twins: Pairs) -> bool:
        """Pair the arrays around the stretches with those elsewhere; return whether all are alike.

        By how many kernels one stretch is moved is in `shifts`, which gets those of the others.
        """
        ops, makers = self.base.ops, self._makers
        others = [s for s in self.stretches if s not in shifts]
        for stretch in [*shifts, *others, *self._sources]:
            kernels = stretch.around
            if stretch not in shifts:
                # What is read elsewhere of what is made here tells where that is made there.
                distances = (
                    makers[w] - makers[v]
                    for v, w in twins.there.items()
                    if w in makers and makers.get(v, -1) in kernels
                )
                shifts[stretch] = next(distances, len(ops))
            shift = shifts[stretch]
            if kernels.start + min(shift, 0) < 0 or kernels.stop + max(shift, 0) > len(ops):
                return False
            if not all(twins.kernels(ops[i], ops[i + shift]) for i in kernels):
                return False
        return all(
            (v in makers) == (w in makers) and (v in self._outputs) == (w in self._outputs)
            for v, w in twins.there.items()
        )

    def _changed(
        self, shifts: Mapping[KernelRange, int], twins: Mapping[Value, Value]
    ) -> Kernels | None:
        """Return the base with the stretches changed where they are moved to.

        It is None where something is read there that is not among the pairs, or is no longer made.
        """
        copies: dict[Value, Value] = {}
        nbytes = dict(self.base.nbytes)

        def moved(v: Value) -> Value | None:
            if v in self.pairs:
                return twins.get(self.pairs[v])
            if v not in copies:
                copies[v] = v.copy()
                if v in self.changed.nbytes:
                    nbytes[copies[v]] = self.changed.nbytes[v]
            return copies[v]

        ops: list[Op] = []
        gone: dict[Value, None] = {}
        places: list[range] = []
        end = 0
        for stretch in sorted(self.stretches, key=lambda s: s.before.start + shifts[s]):
            begin = stretch.before.start + shifts[stretch]
            if begin < end:
                return None
            ops += self.base.ops[end:begin]
            end = begin + len(stretch.before)
            places.append(range(begin, end))
            gone.update((v, None) for op in self.base.ops[begin:end] for v in op.results)
            for op in self.changed.ops[stretch.after.start : stretch.after.stop]:
                renamed = _renamed(op, moved)
                if renamed is None:
                    return None
                ops.append(renamed)
                for v in renamed.results:
                    gone.pop(v, None)
        ops += self.base.ops[end:]
        for v in gone:
            readers = self._readers.get(v, ())
            if v in self._outputs or not all(any(i in at for at in places) for i in readers):
                return None
        return replace(self.base, ops=tuple(ops), nbytes=nbytes)


def difference(base: Kernels, changed: Kernels) -> Difference | None:
    """Return how the kernels of two programs differ; None where inputs or outputs do.

    They are compared from the beginning, from the end, and from where the backward pass begins.
    """
    pairs = Pairs(base, changed)
    if not pairs.ends():
        return None
    one, other = base.ops, changed.ops
    begin = pairs.run(one, other)
    end, end_after = len(one), len(other)
    same = pairs.run(one[begin:][::-1], other[begin:][::-1])
    end, end_after = end - same, end_after - same
    if begin == end == end_after:
        return Difference(base, changed, (), pairs.back)
    turn, turn_after = _turn(one), _turn(other)
    middle, middle_after = range(end, end), range(end_after, end_after)
    if begin <= turn <= end and begin <= turn_after <= end_after:
        back = pairs.run(one[begin:turn][::-1], other[begin:turn_after][::-1])
        on = pairs.run(one[turn:end], other[turn_after:end_after])
        middle = range(turn - back, turn + on)
        middle_after = range(turn_after - back, turn_after + on)
    stretches = (
        KernelRange(range(begin, middle.start), range(begin, middle_after.start)),
        KernelRange(range(middle.stop, end), range(middle_after.stop, end_after)),
    )
    return Difference(base, changed, tuple(s for s in stretches if s.before or s.after), pairs.back)


def are_alike(one: Kernels, other: Kernels) -> bool:
    """Return whether the kernels of two programs are the same but for the arrays' names."""
    change = difference(one, other)
    return change is not None and not change.stretches


class Pairs:
    """The arrays of two blocks that correspond to each other.

    Attributes:
      there: by the arrays of the first block those of the second.
      back: the other way round.
    """

    def __init__(self, one: Block, other: Block) -> None:
        self._one, self._other = one, other
        self.there: dict[Value, Value] = {}
        self.back: dict[Value, Value] = {}

    def ends(self) -> bool:
        """Pair the inputs and the outputs of the blocks, and return whether they are alike."""
        one, other = self._one, self._other
        if len(one.inputs) != len(other.inputs) or len(one.outputs) != len(other.outputs):
            return False
        pairs = zip([*one.inputs, *one.outputs], [*other.inputs, *other.outputs], strict=True)
        return all(v.literal == w.literal if v.literal else self._values(v, w) for v, w in pairs)

    def run(self, one: Sequence[Op], other: Sequence[Op]) -> int:
        """Pair kernels in turn as long as they are alike, and return how many are."""
        count = 0
        for a, b in zip(one, other, strict=False):
            if not self.kernels(a, b):
                break
            count += 1
        return count

    def kernels(self, a: Op, b: Op) -> bool:
        """Return whether two kernels are alike, and pair their arrays if they are."""
        if (a.name, a.phase, a.devices) != (b.name, b.phase, b.devices):
            return False
        if len(a.operands) != len(b.operands) or len(a.results) != len(b.results):
            return False
        if not _bodies_alike(a, b):
            return False
        fresh: list[tuple[Value, Value]] = []
        pairs = zip((*a.operands, *a.results), (*b.operands, *b.results), strict=True)
        is_alike = all(self._values(v, w, fresh) for v, w in pairs)
        # What they may write over.
        is_alike = is_alike and {self.there.get(v) for v in a.overwrites} == {*b.overwrites}
        if not is_alike:
            for v, w in fresh:
                del self.there[v], self.back[w]
        return is_alike

    def _values(self, v: Value, w: Value, fresh: list[tuple[Value, Value]] | None = None) -> bool:
        twin = self.there.get(v)
        if twin is not None:
            return twin is w
        if w in self.back or _array(v) != _array(w):
            return False
        if array_nbytes(v, self._one) != array_nbytes(w, self._other):
            return False
        self.there[v], self.back[w] = w, v
        if fresh is not None:
            fresh.append((v, w))
        return True


def _array(value: Value) -> tuple[object, ...]:
    return value.shape, value.dtype, value.itemsize, value.memory, value.literal, value.spec


def _bodies_alike(a: Op, b: Op) -> bool:
    if not a.bodies and not b.bodies:
        return True
    if len(a.bodies) != len(b.bodies) or _flow(a.nest) != _flow(b.nest):
        return False
    return all(_blocks_alike(x, y) for x, y in zip(a.bodies, b.bodies, strict=True))


def _blocks_alike(one: Block, other: Block) -> bool:
    if one is other:
        return True
    pairs = Pairs(one, other)
    is_long = len(one.ops) == len(other.ops)
    return is_long and pairs.ends() and pairs.run(one.ops, other.ops) == len(one.ops)


def _flow(nest: Nest | None) -> object:
    return nest and (
        (nest.kind, nest.operands, nest.results, nest.length),
        (nest.carries, nest.slices, nest.stacked),
    )


def _turn(ops: Sequence[Op]) -> int:
    return next((i for i, op in enumerate(ops) if op.phase == BACKWARD), len(ops))


def _renamed(op: Op, renamed: Callable[[Value], Value | None]) -> Op | None:
    """Return a kernel that reads and makes other arrays; None where one of them is not known."""
    names = {v: renamed(v) for v in (*op.operands, *op.results)}
    if None in names.values():
        return None

    def of(values: Sequence[Value]) -> tuple[Value, ...]:
        return tuple(w for v in values if (w := names[v]) is not None)

    return replace(
        op,
        operands=of(op.operands),
        results=of(op.results),
        overwrites=of(op.overwrites),
    )

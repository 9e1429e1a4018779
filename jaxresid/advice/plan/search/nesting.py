"""Search for loops cut into segments: which sizes, under which policy, around which bodies.

A segment keeps what enters it, and runs once more in the backward pass. Of a loop of L iterations
in segments of s there are L // s of them, and what is left over follows as it is; with each further
level, up to three, the segments are cut likewise. What such a program keeps, and what it costs,
goes evenly with the counts, so that a few traced variants of a family (one body under one policy)
tell the others well enough to say which are worth a trace; what decides is the trace.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from jaxresid.advice.plan.search.combinations import Combination, TracedVariant
from jaxresid.advice.plan.search.options import Option
from jaxresid.inspector.variants.choices import CheckpointPlace, Choice, Nest

if TYPE_CHECKING:
    from jaxresid.advice.plan.search.trials import Trials

# How many levels of segments a loop may have. Of loops of 8 to 128 iterations, at all budgets, a
# fourth would spare over 1 % of the recompute in 4 of 14,875 cases, a third does in 33; in 608 only
# the third fits (`python -m tests.benchmarks.nesting`).
_LEVELS = (1, 2, 3)
# How many variants in segments are traced for one loop, and of these to find the lowest peak.
_MOST_TRACES = 48
_MOST_FOR_THE_LOWEST = 8
# How far above the budget a predicted peak may be that is worth a trace, as a share of it: of a
# family of which nothing was traced, of one of which one shape was, two, and more.
_ABOVE = (0.25, 0.12, 0.06, 0.03)
# What a policy recomputes in segments, as a share of what it does without, at the least: JAX keeps
# some of what it makes on the way to what is saved.
_SAVED_ONCE = 0.4
# Longer loops are cut at the divisors of their length and at so many other sizes.
_EVERY_SIZE, _SIZES = 256, 64
# A peak that is predicted to be a smaller share of the lowest is worth a trace.
_LOWER = 0.99


@dataclass(frozen=True, slots=True)
class Shape:
    """How a loop is cut.

    Attributes:
      sizes: how many iterations a segment has, by level, the outermost first.
      segments: what is kept besides a segment's iterations: how many segments of all levels.
      rest: how many iterations follow the segments.
    """

    sizes: tuple[int, ...]
    segments: int
    rest: int


def shapes(length: int) -> Iterator[Shape]:
    """Yield the ways to cut a loop into segments, on one to three levels of segments.

    There are at least two segments on each level, of at least two iterations. Segments of segments
    are all alike; only the outermost level may leave iterations over. Of three levels there is one
    way for each outermost and innermost size, with the fewest segments.
    """
    for size in _sizes(length):
        count, rest = divmod(length, size)
        yield Shape((size,), count, rest)
        for inner in _divisors(size):
            yield Shape((size, inner), count + size // inner, rest)
        for inner in _divisors(size):
            between = [m for m in _divisors(size) if m % inner == 0 and m > inner]
            if between:
                middle = min(between, key=lambda m: size // m + m // inner)
                yield Shape((size, middle, inner), count + size // middle + middle // inner, rest)


def _divisors(size: int) -> list[int]:
    """Return the sizes of segments, all alike, to cut a segment into."""
    return [inner for inner in _sizes(size) if size % inner == 0]


def _sizes(length: int) -> list[int]:
    most = length // 2
    if length <= _EVERY_SIZE:
        return list(range(2, most + 1))
    spread = {round(2 * (most / 2) ** (i / (_SIZES - 1))) for i in range(_SIZES)}
    divisors = {i for i in range(2, math.isqrt(length) + 1) if length % i == 0}
    divisors |= {length // i for i in divisors}
    return sorted((spread | divisors) & set(range(2, most + 1)))


@dataclass(slots=True, eq=False)
class _Family:
    """One treatment of the iterations, under one policy of the segments, at every shape.

    Attributes:
      policy: the option whose policy and names the segments have; None: they keep nothing inside.
      others: what is done at all places but the loop.
      again: what the segments cost, where they cover the whole loop.
      room: the bytes of what does not go with the shape.
      inside: the bytes that an iteration keeps besides what the policy saves.
      more: by how much what was traced of it was higher than predicted: the cost, and the bytes,
        each the least of all shapes, so that no shape is left out that is like one of them.
      twin: the same with iterations left over, or without, which it is predicted by until a shape
        of its own is traced.
    """

    policy: Option | None
    others: Combination
    levels: int
    has_rest: bool
    cost: float
    again: float
    room: float
    inside: float
    more: tuple[float, float] = (0.0, 0.0)
    traced: set[Shape] = field(default_factory=set)
    twin: _Family | None = None

    @property
    def told_by(self) -> _Family | None:
        for family in (self, self.twin):
            if (
                family is not None
                and family.traced
                and (family is self or math.isfinite(family.more[0]))
            ):
                return family
        return None


class NestSearch:
    """Tries segments of one loop on top of what was tried without.

    Args:
      search: the search, which has tried what there is without segments.
    """

    def __init__(self, search: Trials, nest: Nest) -> None:
        self._search, self._nest = search, nest
        # In a Python loop each level is a function more, which few would write.
        self._levels = (1,) if nest.place.kind == "groups" else _LEVELS
        self._shapes = {
            (levels, has_rest): [
                s for s in shapes(nest.length) if (len(s.sizes), s.rest > 0) == (levels, has_rest)
            ]
            for levels in self._levels
            for has_rest in (False, True)
        }
        self._left = _MOST_TRACES
        # How much higher a peak is taken to be than it is estimated.
        self._factor = 1.0
        self._made: list[_Family] = []

    def leaves_out(self, cost: float) -> bool:
        """Return whether segments that may cost less than this were not traced."""
        return not self._made or any(
            expected < cost - self._search.slack
            for family in self._made
            for _, expected, _ in self._predicted(family)
        )

    def run(self) -> None:
        """Try whatever may be cheaper than the best that fits; else what may have a lower peak."""
        search = self._search
        best = search.best()
        if best is not None and best.cost <= search.slack and not search.may_pay:
            return
        self._made = families = self._families()
        while self._left > 0:
            best = search.best()
            limit = math.inf if best is None else best.cost - search.slack
            room = search.budget / self._factor
            candidates = [
                (cost, shape.rest > 0, len(shape.sizes), peak, n, shape)
                for n, family in enumerate(families)
                for shape, cost, peak in self._predicted(family)
                if cost < limit and peak <= room * (1 + self._above(family))
            ]
            if not candidates:
                break
            *_, n, shape = min(candidates, key=lambda f: f[:5])
            self._try(families[n], shape)
        for _ in range(min(_MOST_FOR_THE_LOWEST, self._left)):
            lowest = search.lowest()
            if lowest is None or search.best() is not None:
                return
            least = [
                (peak, cost, n, shape)
                for n, family in enumerate(families)
                for shape, cost, peak in self._predicted(family)
                if peak < _LOWER * lowest.peak
            ]
            if not least:
                return
            *_, n, shape = min(least, key=lambda f: f[:3])
            self._try(families[n], shape)

    def _try(self, family: _Family, shape: Shape) -> TracedVariant | None:
        is_first = not family.traced
        family.traced.add(shape)
        tried = self._trial(family.policy, family.others, shape)
        if tried is None:
            family.more = math.inf, math.inf
            return None
        cost, peak = self._as_counted(family, shape)
        more = tried.cost - cost, tried.peak - peak
        if not is_first:
            more = min(more[0], family.more[0]), min(more[1], family.more[1])
        family.more = more
        self._factor = self._search.peak(tried) / max(tried.peak, 1)
        return tried

    def _above(self, family: _Family) -> float:
        family_traced = family.told_by
        return _ABOVE[
            0 if family_traced is None else min(len(family_traced.traced), len(_ABOVE) - 1)
        ]

    def _trial(
        self, policy: Option | None, others: Combination, shape: Shape
    ) -> TracedVariant | None:
        option = segmented(policy, shape)
        self._left -= 1
        return self._search.trial({**others, self._nest.place: option})

    def _predicted(self, family: _Family) -> Iterator[tuple[Shape, float, float]]:
        for shape in self._shapes[family.levels, family.has_rest]:
            if shape not in family.traced:
                yield shape, *self._of(family, shape)

    def _of(self, family: _Family, shape: Shape) -> tuple[float, float]:
        cost, peak = self._as_counted(family, shape)
        family_traced = family.told_by
        if family_traced is None:
            return cost, peak
        return cost + family_traced.more[0], peak + family_traced.more[1]

    def _as_counted(self, family: _Family, shape: Shape) -> tuple[float, float]:
        """Return the cost and the peak of a shape by what it keeps, before any is traced.

        While a segment runs backward, what its iterations take in is there once more for each level
        that it is in, and so are the gradients of these. What is left over runs backward first; the
        loop's part of the inputs is one array with what is left over before and after, and two
        between.
        """
        nest = self._nest
        covered = (nest.length - shape.rest) / nest.length
        cost = family.cost + family.again * family.levels * covered
        taken = 2 * nest.xs_nbytes / nest.length
        ends: float = shape.segments * nest.carry_nbytes + shape.sizes[-1] * family.inside
        ends += sum(shape.sizes) * taken + (nest.xs_nbytes if shape.rest else 0)
        at_end: float = nest.length // shape.sizes[0] * nest.carry_nbytes
        at_end += shape.rest * (family.inside + taken)
        return cost, family.room + max(ends, at_end)

    def _families(self) -> list[_Family]:
        search, nest = self._search, self._nest
        length, carry = nest.length, nest.carry_nbytes
        plain, bare = search.trial({}), search.trial(self._bare())
        if plain is None or bare is None or (nest.place.kind == "segments" and not nest.inside):
            return []
        near = round(math.sqrt(length))
        first = min(
            self._shapes[1, False] or self._shapes[1, True],
            key=lambda s: abs(s.sizes[0] - near),
        )
        one = self._trial(None, bare.combination, first)
        if one is None:
            return []
        # What is kept outside of the loop, and what one run of the loop costs.
        kept = one.variant.kept_nbytes - length // first.sizes[0] * carry
        kept -= first.rest * carry
        kept = min(kept, bare.variant.kept_nbytes - length * carry)
        again = (one.cost - bare.cost) * length / (length - first.rest)

        def per_iteration(tried: TracedVariant) -> float:
            return max((tried.variant.kept_nbytes - kept) / length, carry)

        families: list[_Family] = []
        for tried in _worthwhile(self._without_segments(), per_iteration):
            nbytes = per_iteration(tried)
            base = tried.peak - tried.variant.kept_nbytes + kept
            families += self._at_every_level(
                None, tried.combination, tried.cost, again, base, nbytes
            )
        for option in self._policies():
            flat = search.trial({**bare.combination, nest.inside[0]: option})
            if flat is None:
                continue
            saved = per_iteration(flat) - carry
            room = bare.peak - bare.variant.kept_nbytes + kept + saved * length
            cost = _SAVED_ONCE * flat.cost
            families += self._at_every_level(option, flat.combination, cost, 0.0, room, carry)
        return families

    def _at_every_level(
        self,
        policy: Option | None,
        others: Combination,
        cost: float,
        again: float,
        room: float,
        inside: float,
    ) -> Iterator[_Family]:
        for levels in self._levels if policy is None else (1,):
            even, rest = (
                _Family(policy, others, levels, has_rest, cost, again, room, inside)
                for has_rest in (False, True)
            )
            even.twin, rest.twin = rest, even
            yield from (even, rest)

    def _bare(self) -> dict[CheckpointPlace, Option]:
        """Return the treatment that keeps nothing of an iteration but what enters it."""
        chosen = {}
        for menu in self._search.menus:
            if menu.place in self._nest.inside:
                chosen[menu.place] = next(
                    o for o in menu.by_policy if o.choice is not None and o.choice.policy is None
                )
        return chosen

    def _without_segments(self) -> list[TracedVariant]:
        """Return what was tried with this loop as it is, and with no checkpoint around it."""
        around = [m.place for m in self._search.menus if self._is_around(m.place)]
        return [
            t
            for t in self._search.tried
            if all(
                option.choice is None
                for place in (self._nest.place, *around)
                for option, _ in t.combination[place]
            )
        ]

    def _is_around(self, place: CheckpointPlace) -> bool:
        if place in self._nest.inside:
            return False
        return place.kind == "whole" or any(
            self._search.overlap(place, p) for p in self._nest.inside
        )

    def _policies(self) -> list[Option]:
        if len(self._nest.inside) != 1:
            return []
        (place,) = self._nest.inside
        return [
            option
            for menu in self._search.menus
            if menu.place is place
            for option in (*menu.by_policy, *menu.front)
            if option.choice is not None
            and option.choice.policy is not None
            and "offload" not in (option.policy or "")
            and option.policy != "everything_saveable"
        ]


def segmented(policy: Option | None, shape: Shape) -> Option:
    """Return the option of cutting a loop into segments, under the policy of another option."""
    if policy is None or policy.choice is None:
        return Option(Choice(segments=shape.sizes))
    choice = Choice(policy.choice.policy, policy.choice.names, shape.sizes)
    return Option(choice, policy.policy, policy.values)


def _worthwhile(
    tried: Sequence[TracedVariant], kept: Callable[[TracedVariant], float]
) -> list[TracedVariant]:
    """Return the variants that no other beats in both cost and what an iteration keeps."""
    unbeaten: list[TracedVariant] = []
    least = math.inf
    for variant in sorted(tried, key=lambda t: (t.cost, kept(t), t.effort)):
        if kept(variant) < least:
            unbeaten.append(variant)
            least = kept(variant)
    return unbeaten

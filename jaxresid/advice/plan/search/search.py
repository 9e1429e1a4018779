"""Search for a plan: variants are traced and measured, and the cheapest that fits is kept.

The integer programs say what is worth trying; what decides is the trace of each variant. Peaks are
taken to fall (nearly) with what is kept: between a choice that fits and one that does not the
search bisects. That is exact where they do, and what it tried is counted. What the peak of a
variant is taken to be, `Peaks` tells: where the compiler has said some, `run` may be called again.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Container, Hashable, Iterator, Mapping, Sequence

from jaxresid.advice.plan.search.combinations import Combination, Runs, TracedVariant
from jaxresid.advice.plan.search.exchanges import try_exchanges
from jaxresid.advice.plan.search.nesting import NestSearch
from jaxresid.advice.plan.search.options import UNTOUCHED, Menu, Option
from jaxresid.advice.plan.search.peaks import Peaks
from jaxresid.advice.plan.search.solver import combine_options
from jaxresid.advice.plan.search.solver_counts import try_counts
from jaxresid.advice.plan.search.splits import try_splits
from jaxresid.base.errors import JaxresidError
from jaxresid.inspector.program.build import Program
from jaxresid.inspector.program.ops import Block
from jaxresid.inspector.variants.choices import CheckpointPlace, Choices, Nest, Variant, Variants
from jaxresid.inspector.variants.solver_variants import Solver

# Fronts up to so many options are tried one by one, longer ones by bisection: 0.05 s each for a
# program of few ops, as loops are, a second for dozens of unrolled layers. With several places each
# is looked at several times.
_EXHAUSTIVE_LIMIT = 24
_EXHAUSTIVE_LIMIT_OF_SEVERAL = 10
_EXHAUSTIVE_LIMIT_IF_SMALL = 100
_SMALL = 500
# Neighbours of a bisection's result that are tried as well: peaks do not fall evenly.
_NEIGHBOURS = 4
# How far above the lowest peak, and the budget, an expected one may be that is worth a trace where
# nothing fits, as a share.
_ABOVE = 0.25
# What is saved tells by how much that raises the peak where it is a larger share of the peak.
_TELLING = 0.1
_ROUNDS = 12


class Search:
    """Finds the cheapest combination of options that fits.

    Args:
      variants: Makes the variants to trace.
      plain: The variant without any checkpoint.
      menus: The options of each place, but for those by name.
      fronts: Makes all options of each place, for where something has to be recomputed.
      cost: Returns the cost of a variant.
      budget: Bytes of peak memory.
      nests: The loops that may be cut into segments.
      solver: The solver's loop whose checkpoints may be fewer; None: there is none.
      peaks: What the peaks of variants are taken to be.
      slack: A difference in cost that does not justify a name in the code.
      may_pay: Whether a checkpoint may cost less than none, as where time is minimised.
      progress: Called with a text that says what is being done.

    Attributes:
      nested: The places of the loops that may be cut.
      solver: The solver's loop.
      cost: Returns the cost of a variant.
    """

    def __init__(
        self,
        variants: Variants,
        plain: Variant,
        menus: Sequence[Menu],
        fronts: Callable[[], Sequence[Menu]],
        cost: Callable[[Variant], float],
        budget: int,
        *,
        nests: Sequence[Nest],
        solver: Solver | None = None,
        peaks: Peaks,
        slack: float,
        may_pay: bool,
        progress: Callable[[str], None],
    ) -> None:
        self._variants = variants
        self._nests = [NestSearch(self, nest) for nest in nests]
        self.nested = tuple(nest.place for nest in nests)
        self.solver = solver
        self.menus = tuple(menus)
        self._fronts: Callable[[], Sequence[Menu]] | None = fronts
        self.cost = cost
        self._peaks = peaks
        self.budget = budget
        self.slack = slack
        self._progress = progress
        self.may_pay = may_pay
        self._known: dict[Hashable, TracedVariant | None] = {}
        self._variant_of = {_effect(self._runs({})): plain}
        self._overlaps = set(variants.overlaps())
        self.tried: list[TracedVariant] = []
        self.every_front = True
        self._until = math.inf

    # -- the result --------------------------------------------------------------------------

    def best(self, excluding: Container[TracedVariant] = ()) -> TracedVariant | None:
        """Return the cheapest variant that fits, or None.

        Of those that cost hardly more than the cheapest it is one whose peak is known, and the one
        that takes the least effort to write.

        Args:
          excluding: The variants that are ruled out.
        """
        fitting = [t for t in self.tried if self.fits(t) and t not in excluding]
        least = min((t.cost for t in fitting), default=0.0)
        near = [t for t in fitting if t.cost <= least + self.slack]
        return min(near, key=self._effort, default=None)

    def _effort(self, tried: TracedVariant) -> tuple[bool, int, int, float, float]:
        is_unknown = tried not in self._peaks.figures
        return is_unknown, tried.effort, tried.changes, tried.cost, self.peak(tried)

    def lowest(self, excluding: Container[TracedVariant] = ()) -> TracedVariant | None:
        """Return the variant with the lowest peak; None where all are ruled out by `excluding`."""
        left = [t for t in self.tried if t not in excluding]
        return min(left, key=lambda t: (self.peak(t), t.cost, t.effort, t.changes), default=None)

    def peak(self, tried: TracedVariant) -> float:
        """Return what the peak of a variant is taken to be, in bytes."""
        return self._peaks.of(tried)

    def leaves_out_segments(self, cost: float) -> bool:
        """Return whether loops in segments that may cost less than this were not traced."""
        return any(nest.leaves_out(cost) for nest in self._nests)

    def run(self) -> None:
        """Try whatever may be the cheapest."""
        plain = self.trial({})
        if plain is not None and self.fits(plain) and not plain.cost and not self.may_pay:
            self._try_policies([None])  # nothing is cheaper; the lowest is shown all the same
            return
        if self._fronts is not None:
            self.menus, self._fronts = tuple(self._fronts()), None
        for menu in self.menus:
            for option in menu.known:
                self.trial({menu.place: option})
        self._try_policies(list(dict.fromkeys(o.policy for m in self.menus for o in m.known)))
        fronts = [menu for menu in self.menus if menu.front]
        if len(fronts) == 1:
            self._try_front(fronts[0], {})
        elif fronts:
            self._try_combinations()
        try_exchanges(self, self._exhaustive_limit)
        try_splits(self)
        for nest in self._nests:
            nest.run()
        if self.solver is not None:
            try_counts(self, self.solver)
        self._simplify()

    def _simplify(self) -> None:
        """Try the best without the names that save next to no cost."""
        best = self.best()
        if best is None:
            return
        for menu in self.menus:
            runs = tuple(
                (menu.reduced(option, self.slack / len(self.menus)) or option, count)
                for option, count in best.combination[menu.place]
            )
            if runs != best.combination[menu.place]:
                best = self.trial({**best.combination, menu.place: runs}) or best

    # -- trying ------------------------------------------------------------------------------

    def trial(self, chosen: Mapping[CheckpointPlace, Option | Runs]) -> TracedVariant | None:
        """Trace a combination and return the result; None if it fails.

        Places that it does not mention have no checkpoint.
        """
        runs = self._runs(chosen)
        key = _key(runs)
        if key not in self._known and time.monotonic() < self._until:
            self._known[key] = self._traced(runs)
        return self._known.get(key)

    def stop(self, at: float = -math.inf) -> None:
        """Trace nothing from a time on: a trial of what was not traced fails.

        Args:
          at: the time, by `time.monotonic`; without it now.
        """
        self._until = at

    def as_written(self) -> TracedVariant | None:
        """Return the code as it is written, traced; None if that fails."""
        return self.trial({m.place: o for m in self.menus for o in m.known if not o.changed})

    def known(self, chosen: Mapping[CheckpointPlace, Option | Runs]) -> TracedVariant | None:
        """Return a combination that was traced; None if it was not, or failed."""
        return self._known.get(_key(self._runs(chosen)))

    def may_combine(self, one: CheckpointPlace, other: CheckpointPlace) -> bool:
        """Return whether two places can both have a checkpoint: neither is inside the other."""
        return not self.overlap(one, other)

    def _runs(self, chosen: Mapping[CheckpointPlace, Option | Runs]) -> dict[CheckpointPlace, Runs]:
        runs: dict[CheckpointPlace, Runs] = {}
        for menu in self.menus:
            made = chosen.get(menu.place, menu.plain)
            runs[menu.place] = ((made, menu.place.calls),) if isinstance(made, Option) else made
        for place in (*self.nested, *([self.solver.place] if self.solver else [])):
            made = chosen.get(place, UNTOUCHED)
            runs[place] = ((made, place.calls),) if isinstance(made, Option) else made
        return runs

    def _traced(self, runs: Combination) -> TracedVariant | None:
        active = [p for p, each in runs.items() if any(o.choice is not None for o, _ in each)]
        if any(self.overlap(a, b) for a, b in itertools.combinations(active, 2)):
            return None
        self._progress(f"tracing variant {len(self.tried) + 1}")
        key = _effect(runs)
        try:
            variant = self._variant_of.get(key) or self._variants.variant(choices(runs))
        except JaxresidError:
            return None
        self._variant_of[key] = variant
        tried = TracedVariant(runs, variant, self.cost(variant))
        self.tried.append(tried)
        return tried

    def overlap(self, one: CheckpointPlace, other: CheckpointPlace) -> bool:
        """Return whether one of two places is (partly) inside the other."""
        return (one, other) in self._overlaps or (other, one) in self._overlaps

    def others(
        self, place: CheckpointPlace, tried: TracedVariant
    ) -> dict[CheckpointPlace, Option | Runs]:
        """Return what was done at the other places, without those that overlap with this one."""
        return {
            other: runs
            for other, runs in tried.combination.items()
            if other is not place and not self.overlap(place, other)
        }

    def fits(self, tried: TracedVariant | None) -> bool:
        """Return whether a variant, if it was traced, fits into the budget."""
        return tried is not None and self.peak(tried) <= self.budget

    @property
    def _exhaustive_limit(self) -> int:
        if sum(bool(menu.front) for menu in self.menus) > 1:
            return _EXHAUSTIVE_LIMIT_OF_SEVERAL
        plain = self.tried[0].variant
        # Where the first is not small, with layers left out perhaps, the other is not.
        is_small = _is_small(plain.lowered.program) and _is_small(plain.program)
        return _EXHAUSTIVE_LIMIT_IF_SMALL if is_small else _EXHAUSTIVE_LIMIT

    # -- one place ---------------------------------------------------------------------------

    def _try_front(self, menu: Menu, others: Mapping[CheckpointPlace, Option | Runs]) -> None:
        """Try the options by name at one place, from the most expensive in bytes to none."""
        front = menu.front
        self.every_front = self.every_front and menu.complete

        def at(i: int) -> TracedVariant | None:
            return self.trial({**others, menu.place: front[i]})

        if len(front) <= self._exhaustive_limit:
            for i in range(len(front)):
                at(i)
            return
        low, high = 0, len(front)  # the first that fits lies in [low, high)
        while low < high:
            middle = (low + high) // 2
            if self.fits(at(middle)):
                high = middle
            else:
                low = middle + 1
        for i in range(max(low - _NEIGHBOURS, 0), min(low + _NEIGHBOURS + 1, len(front))):
            at(i)
        if self.best() is None:
            self._try_lowest(menu, others)

    def _try_lowest(self, menu: Menu, others: Mapping[CheckpointPlace, Option | Runs]) -> None:
        """Try of the last of a front, those of the fewest bytes, what may have the lowest peak.

        Each byte that is saved is taken to raise the peak by as much as it does at the least where
        that was tried. In segments of a loop it does not: all are tried inside one.
        """
        last = menu.front[-self._exhaustive_limit :]
        bare = self.trial({**others, menu.place: last[-1]})
        is_nested = any(menu.place in nest.inside for nest in self._variants.nests())
        rate = 0.0 if bare is None or is_nested else self._rate(menu, others, bare)
        for option in reversed(last):
            lowest = self.lowest()
            most = max(self.peak(lowest) if lowest else 0, self.budget) * (1 + _ABOVE)
            if not rate or (bare and self.peak(bare) + rate * (option.nbytes or 0) <= most):
                self.trial({**others, menu.place: option})

    def _rate(
        self, menu: Menu, others: Mapping[CheckpointPlace, Option | Runs], bare: TracedVariant
    ) -> float:
        """Return by how much a byte saved at a place raises the peak, at the least that is known.

        It is 0 where nothing tells.

        Args:
          menu: The menu of the place.
          others: What is done at the other places.
          bare: The variant that saves nothing there.
        """
        saving = [o for o in (*menu.known, *menu.front) if o.choice is not None]
        known = [t for o in saving if (t := self.known({**others, menu.place: o})) is not None]
        more = [(t, t.variant.kept_nbytes - bare.variant.kept_nbytes) for t in known]
        rates = [
            (self.peak(t) - self.peak(bare)) / nbytes
            for t, nbytes in more
            if nbytes > _TELLING * self.peak(t)
        ]
        return max(min(rates, default=0.0), 0.0)

    # -- several places ----------------------------------------------------------------------

    def _try_policies(self, policies: Sequence[str | None]) -> None:
        """Try some of JAX's policies, each at all places at once, and the code as it is written."""
        parts = [menu for menu in self.menus if menu.place.kind != "whole"] or self.menus
        for policy in policies:
            chosen: dict[CheckpointPlace, Option] = {}
            for menu in parts:
                same = [o for o in menu.known if o.policy == policy]
                if same and not any(self.overlap(place, menu.place) for place in chosen):
                    chosen[menu.place] = same[0]
            self.trial(chosen)
        self.as_written()

    def _try_combinations(self) -> None:
        """Try combinations that the integer program over all menus finds, then each place alone.

        The limit on the bytes kept is bisected.
        """
        plain = self.trial({})
        tables = [self._weighed(menu, plain) for menu in self.menus]
        costs = [[cost for _, _, cost in table] for table in tables]
        weights = [[weight for _, weight, _ in table] for table in tables]
        numbers = {menu.place: i for i, menu in enumerate(self.menus)}
        conflicts = [
            (numbers[a], numbers[b]) for a, b in self._overlaps if a in numbers and b in numbers
        ]
        least = sum(
            min(w) for w, m in zip(weights, self.menus, strict=True) if m.place.kind != "whole"
        )
        low, high = least, 0.0
        limit = low
        for _ in range(_ROUNDS):
            picked = combine_options(costs, weights, limit, conflicts)
            if picked is None:
                break
            tried = self.trial(
                {
                    menu.place: table[i][0]
                    for menu, table, i in zip(self.menus, tables, picked, strict=True)
                }
            )
            if self.fits(tried):
                low = limit
            elif limit == least:
                break
            else:
                high = limit
            if high - low <= abs(least) * 1e-3:
                break
            limit = (low + high) / 2
        self._try_cheaper()

    def _weighed(
        self, menu: Menu, plain: TracedVariant | None
    ) -> list[tuple[Option, float, float]]:
        """Return the options of a menu with their weights and costs.

        The weight is the bytes that an option keeps more than no checkpoint does.
        """
        table = [(menu.plain, 0.0, 0.0)]
        nothing = next((o for o in menu.known if o.choice and o.choice.policy is None), None)
        bare = None if nothing is None else self.trial({menu.place: nothing})
        if plain is None or bare is None:
            return table
        base = float(bare.variant.kept_nbytes - plain.variant.kept_nbytes)
        for option in menu.known:
            tried = self.trial({menu.place: option})
            if tried is not None:
                kept = float(tried.variant.kept_nbytes - plain.variant.kept_nbytes)
                table.append((option, kept, tried.cost - plain.cost))
        for option in menu.front:
            table.append((option, base + (option.nbytes or 0), option.cost or 0.0))
        return table

    def _try_cheaper(self) -> None:
        """Try at each place, from the best found on, the cheapest option that still fits."""
        for _ in range(2):
            start = self.best()
            if start is None:
                return
            by_cost = sorted(self.menus, key=lambda m: -_highest_cost(start.combination[m.place]))
            for menu in by_cost:
                best = self.best()
                assert best is not None
                others = self.others(menu.place, best)
                self.trial({**others, menu.place: menu.plain})
                for option in menu.known:
                    self.trial({**others, menu.place: option})
                self._try_front(menu, others)
            if self.best() is start:
                return


def _key(runs: Combination) -> Hashable:
    """Return a key for a combination, the same for options that are written alike."""
    return _effect(runs), tuple(option.changed for each in runs.values() for option, _ in each)


def _effect(runs: Combination) -> Hashable:
    """Return a key for what a combination makes of the program, whether or not it is a change."""
    return tuple(
        (
            place,
            option.segments,
            option.checkpoints,
            option.choice is None,
            option.policy,
            option.values,
            count,
        )
        for place, each in runs.items()
        for option, count in each
    )


def _is_small(program: Program) -> bool:
    return sum(len(block.ops) for block in _blocks(program.block)) <= _SMALL


def _blocks(block: Block) -> Iterator[Block]:
    yield block
    for op in block.ops:
        for body in op.bodies:
            yield from _blocks(body)


def choices(runs: Combination) -> Choices:
    """Return a combination as the choices that `Variants` take."""
    return {
        place: tuple(option.choice for option, count in each for _ in range(count))
        for place, each in runs.items()
        if place.kind == "checkpoint" or any(option.choice is not None for option, _ in each)
    }


def _highest_cost(runs: Runs) -> float:
    return max(option.cost or 0.0 for option, _ in runs)

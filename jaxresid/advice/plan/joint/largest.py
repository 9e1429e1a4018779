"""Find the largest size that fits: a batch, a context, a chunk, in few traces.

The next size to try is where the line through two peaks meets the budget: with peaks that grow
evenly that takes four traces, however many sizes there are. Between sizes that are far apart it is
the line of the logarithms, for peaks that grow as a power.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from jaxresid.advice.plan.joint.search import JointSearch, Solved
from jaxresid.advice.plan.source.file_edits import FileEdit
from jaxresid.advice.plan.verification import Check
from jaxresid.base.errors import InputsError, JaxresidError
from jaxresid.inspector.memory.compilers import has_estimate
from jaxresid.inspector.subject.base import Subject, gc_paused
from jaxresid.results import (
    Configuration,
    GrowingValue,
    Growth,
    Interval,
    Largest,
    LiveValue,
    Plan,
    SizePeak,
    answer,
)
from jaxresid.xla.places import Place

# What was planned, and the edits that carry it out.
Drafted = tuple[Plan, tuple[FileEdit, ...]]

# So often the line says what to try next; then halves are tried as well, which always end.
_MOST_BY_LINE = 12
# Sizes of which the larger is so often the smaller are near.
_NEAR = 4
# Of what grows; a value that grows less is not told of.
_WORTH_SAYING = 0.01


@dataclass(frozen=True, slots=True)
class Measured:
    """What is known of a size.

    Attributes:
      fits: whether it fits.
      nbytes: the bytes that are held against the budget; None where they do not grow with the size,
        as those of a plan, which recomputes more.
    """

    fits: bool
    nbytes: int | None


@dataclass(frozen=True, slots=True)
class Bracket:
    """The largest size that fits, and the next larger one that is known not to.

    Attributes:
      fitting: the first; None where none does.
      beyond: the second; None where none is known.
    """

    fitting: int | None
    beyond: int | None


class SizeSearch:
    """A search for the largest of some sizes, where of two sizes the larger one takes more.

    Args:
      sizes: the sizes, the smallest first.
      coarse: those that are left as long as they can be traced, whichever of the others cannot, as
        where a size has to be a power of two. Of the others those are left that are multiples of
        twice the smallest, of four times, and so on, as where a mesh has to divide a size.
      budget_nbytes: the bytes that they have to fit into.

    Attributes:
      failed: the sizes that could not be traced, each with the error.
    """

    def __init__(self, sizes: Sequence[int], coarse: Sequence[int], budget_nbytes: int) -> None:
        self.failed: dict[int, JaxresidError] = {}
        self._every, self._coarse, self._budget = sizes, frozenset(coarse), budget_nbytes
        self._sizes = sizes

    def run(self, measure: Callable[[int], Measured | None], start: int | None = None) -> Bracket:
        """Return the largest size that fits.

        Args:
          measure: returns what is known of a size; None: no more can be asked, and the search ends.
          start: the size to begin with; None: the smallest.
        """
        low, high = -1, len(self._sizes)
        at = 0 if start is None else self._sizes.index(start)
        known: dict[int, int] = {}
        while high - low > 1:
            size = self._sizes[at]
            try:
                measured = measure(size)
            except JaxresidError as e:
                self.failed[size] = e
                low, high = self._without_failed(low, high)
                at = self._next(known, low, high) if low >= 0 else 0
                continue
            if measured is None:
                break
            if measured.fits:
                low = at
            else:
                high = at
            if measured.nbytes is not None:
                known[size] = measured.nbytes
            at = self._next(known, low, high)
        return Bracket(
            self._sizes[low] if low >= 0 else None,
            self._sizes[high] if high < len(self._sizes) else None,
        )

    def _without_failed(self, low: int, high: int) -> tuple[int, int]:
        """Leave out the sizes that are like failed ones, and return where the ends are."""
        ends = self._sizes[max(low, 0) : low + 1], self._sizes[high : high + 1]
        least = ends[0][0] if ends[0] else 0
        most = ends[1][0] if ends[1] else self._every[-1] + 1
        stride = self._every[0]
        while any(size % stride == 0 for size in self.failed if size not in self._coarse):
            stride *= 2
        left = (s for s in self._every if s in self._coarse or s % stride == 0)
        between = [s for s in left if least < s < most and s not in self.failed]
        self._sizes = [*ends[0], *between, *ends[1]]
        return len(ends[0]) - 1, len(ends[0]) + len(between)

    def _next(self, known: Mapping[int, int], low: int, high: int) -> int:
        """Return the number of the size to try next, between two others."""
        is_bounded = low >= 0 and high < len(self._sizes)
        size = self._expected(known, self._sizes[low], self._sizes[high]) if is_bounded else None
        if not is_bounded:
            size = self._on_line(known)
        if size is None or len(known) > _MOST_BY_LINE:
            if is_bounded or low < 0:
                return (low + high) // 2
            size = 2 * self._sizes[low]
        return max(low + 1, min(high - 1, bisect.bisect_right(self._sizes, size) - 1))

    def _expected(self, known: Mapping[int, int], low: int, high: int) -> float | None:
        """Return the size between two that is expected to take the budget; None: not known."""
        if high <= _NEAR * low or low not in known or high not in known:
            return self._on_line(known)
        if len(known) % 2:
            return math.sqrt(low * high)
        power = math.log(high / low) / math.log(max(known[high] / known[low], 1 + 1e-9))
        return float(low * (self._budget / known[low]) ** power)

    def _on_line(self, known: Mapping[int, int]) -> float | None:
        """Return where the line through the two peaks next to the budget meets it."""
        if not known:
            return None
        nearest = sorted(known, key=lambda size: abs(known[size] - self._budget))
        size, nbytes = nearest[0], known[nearest[0]]
        slope = nbytes / size
        if len(nearest) > 1:
            slope = (nbytes - known[nearest[1]]) / (size - nearest[1])
        if slope <= 0:
            return math.inf if nbytes <= self._budget else None
        return size + (self._budget - nbytes) / slope


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """The largest size that fits, with its plan; where none fits, the smallest with its.

    Attributes:
      solved: the configuration.
      drafted: the plan of it, and its edits.
      largest: what the search has to say.
    """

    solved: Solved
    drafted: Drafted
    largest: Largest


class LargestSearch:
    """The search for the largest size on one mesh, with one number of microbatches.

    A program without a gradient fits by the whole range of its estimate, one with gradients by the
    estimate of its plan; where a compiler is asked, both fit by its figures.

    Args:
      search: searches the configurations.
      place: the place to plan for.
      mesh: the mesh; None: that of the inputs.
      microbatches: in how many microbatches the size goes through.
      checks: as of `jointly_drafted`.
      lifetimes: as of `jointly_drafted`.
    """

    def __init__(
        self,
        search: JointSearch,
        place: Place,
        mesh: str | None,
        microbatches: int,
        checks: Callable[[Check, Configuration], Check | None] | None,
        lifetimes: bool,
    ) -> None:
        self._search, self._place = search, place
        self._mesh, self._count = mesh, microbatches
        self._checks, self._has_lifetimes = checks, lifetimes
        self._solved: dict[int, Solved] = {}
        self._drafts: dict[int, Drafted] = {}
        grid = search.configurations.grid
        self._sizes = [size for size in grid.sizes if size % microbatches == 0]
        if not self._sizes:
            raise InputsError(f"no size can go through in {microbatches} microbatches")
        coarse = [size for size in grid.batches if size % microbatches == 0]
        self._by_size = SizeSearch(self._sizes, coarse, search.terms.budget_nbytes)

    def run(self) -> Outcome:
        """Return the largest size that fits, with its plan.

        Raises:
          JaxresidError: none can be traced.
        """
        compiles = self._search.terms.compiles
        possible = None
        if has_estimate(self._place):
            bracket = self._by_size.run(self._estimated)
        if not has_estimate(self._place) or (compiles is not None and self._solved):
            start = bracket.fitting if has_estimate(self._place) else None
            bracket = self._by_size.run(self._compiled, start)
        elif bracket.fitting != self._sizes[-1] and self._is_told_by_range():
            possible = self._by_size.run(self._lowest, bracket.fitting).fitting
        if not self._solved:
            raise next(iter(self._by_size.failed.values()))
        size = bracket.fitting
        chosen = min(self._solved) if size is None else size
        beyond = bracket.beyond
        largest = Largest(
            name=self._search.configurations.grid.name,
            size=size,
            first=self._sizes[0],
            last=self._sizes[-1],
            count=len(self._sizes),
            tried=len(self._solved),
            next=self._peak_at(beyond) if size is not None and beyond is not None else None,
            possible=None if possible == size else possible,
            growth=self._growth(chosen),
        )
        return Outcome(self._solved[chosen], self._drafted(chosen), largest)

    def _is_told_by_range(self) -> bool:
        return not any(each.planning.subject.target.has_gradient for each in self._solved.values())

    def _at(self, size: int) -> Solved:
        if size not in self._solved:
            name = self._search.configurations.grid.name
            configuration = Configuration(size, self._count, self._mesh, name)
            self._solved[size] = self._search.solve(configuration)
        return self._solved[size]

    def _estimated(self, size: int) -> Measured:
        """Return what the estimate says of a size."""
        solved = self._at(size)
        if solved.planning.subject.target.has_gradient:
            return Measured(solved.best is not None, None)
        nbytes, around = self._estimate(solved)
        if self._search.terms.compiles is None and around is not None:
            nbytes = around.high_nbytes
        return Measured(nbytes <= solved.planning.budget_nbytes, nbytes)

    def _lowest(self, size: int) -> Measured:
        """Return whether a size may fit by the range of its estimate."""
        solved = self._at(size)
        nbytes, around = self._estimate(solved)
        budget = solved.planning.budget_nbytes
        lowest = nbytes if around is None else around.low_nbytes
        return Measured(answer(around, budget) != "does not fit", lowest)

    def _compiled(self, size: int) -> Measured | None:
        """Return what the compiler says of a size; None where it is not asked any more."""
        compiles = self._search.terms.compiles
        assert compiles is not None
        if compiles.is_over and size not in self._drafts:
            return None
        plan, _ = self._drafted(size)
        return Measured(plan.is_within, plan.peak_nbytes) if plan.confirmed else None

    def _estimate(self, solved: Solved) -> tuple[int, Interval | None]:
        """Return the estimated peak of a program without a gradient, and its range."""
        peak = solved.planning.subject.peak
        assert peak is not None
        return peak.nbytes, peak.interval

    def _drafted(self, size: int) -> Drafted:
        if size not in self._drafts:
            solved, terms = self._at(size), self._search.terms
            check = self._search.configurations.check(solved.configuration)
            with gc_paused(), solved.planning.subject.tracing():
                self._drafts[size] = solved.planning.planned(
                    check if self._checks is None else self._checks(check, solved.configuration),
                    terms.compiles,
                    terms.said,
                    lifetimes=self._has_lifetimes,
                )
        return self._drafts[size]

    def _peak_at(self, size: int) -> SizePeak:
        """Return the peak of a size that was tried: of its plan, or the lowest."""
        if size in self._drafts:
            plan, _ = self._drafts[size]
            return SizePeak(size, plan.peak_nbytes, plan.low_nbytes, plan.high_nbytes)
        solved = self._solved[size]
        if not solved.planning.subject.target.has_gradient:
            nbytes, around = self._estimate(solved)
        else:
            tried = solved.best or solved.lowest
            assert tried is not None
            nbytes = tried.peak
            around = solved.planning.subject.interval(nbytes, tried.variant.lowered.program)
        low, high = (None, None) if around is None else (around.low_nbytes, around.high_nbytes)
        return SizePeak(size, nbytes, low, high)

    def _growth(self, chosen: int) -> Growth | None:
        """Return how the peak grows from the chosen size to the next that was tried."""
        if not self._is_told_by_range():
            return None
        larger = min((size for size in self._solved if size > chosen), default=None)
        smaller = max((size for size in self._solved if size < chosen), default=None)
        low, high = (chosen, larger) if larger is not None else (smaller, chosen)
        if low is None or high is None:
            return None
        before, after = (self._solved[size].planning.subject for size in (low, high))
        return growth((low, high), (before, after))


def growth(sizes: tuple[int, int], subjects: tuple[Subject, Subject]) -> Growth | None:
    """Return how the estimated peak grows from one size to a larger; None without estimates.

    Args:
      sizes: the two sizes.
      subjects: the program at each.
    """
    before, after = (each.peak for each in subjects)
    if before is None or after is None:
        return None
    known: dict[object, int] = {}
    for value in before.live:
        known[_key(value)] = known.get(_key(value), 0) + value.nbytes
    grown, largest = dict[object, int](), dict[object, LiveValue]()
    for value in after.live:
        grown[_key(value)] = grown.get(_key(value), 0) + value.nbytes
        largest.setdefault(_key(value), value)
    values = [
        GrowingValue(largest[key], nbytes - known.get(key, 0)) for key, nbytes in grown.items()
    ]
    growing = sorted((v for v in values if v.nbytes > 0), key=lambda v: -v.nbytes)
    least = _WORTH_SAYING * sum(v.nbytes for v in growing)
    return Growth(
        sizes[0],
        sizes[1],
        after.nbytes - before.nbytes,
        tuple(v for v in growing if v.nbytes >= least),
    )


def _key(value: LiveValue) -> object:
    """Return what a value is, whatever its size."""
    return value.kind, value.primitive, value.path, value.location, value.phase

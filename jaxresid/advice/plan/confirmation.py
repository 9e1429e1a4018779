"""Have the compiler confirm a plan: it compiles what the search proposes, and the search learns."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any

from jaxresid.advice.compile.ahead_of_time import CompileSettings, PolicyProgram
from jaxresid.advice.compile.limited import COMPILE_SECONDS, LimitedCompiles
from jaxresid.advice.plan.drafts import Draft, Drafts
from jaxresid.advice.plan.search.combinations import Combination, TracedVariant
from jaxresid.advice.plan.search.options import Option
from jaxresid.advice.plan.search.peaks import Peaks
from jaxresid.advice.plan.search.search import Search
from jaxresid.advice.plan.verification import PlanFigures
from jaxresid.base.progress import Progress
from jaxresid.inspector.memory.compilers import has_estimate
from jaxresid.xla.places import Place

# How many variants of a program are compiled for one plan: where an estimate says what to propose,
# and where a compiler of seconds is asked instead of one.
MOST_COMPILES = 6
MOST_COMPILES_WITHOUT_ESTIMATE = 20
# From this many compiles on a cheaper variant is compiled only if it is more likely to fit than
# not; before, if it may well fit.
_CURIOUS = 4
_CURIOUS_WITHOUT_ESTIMATE = 12
_MAY_FIT = 0.1
# A plan that costs this much more than another is as good.
_AS_GOOD = 0.01
# Less likely to fit than that is not worth a compile.
_HOPELESS = 0.02
# A peak of more than this share of another is hardly lower.
_LOWER = 0.95
# How much more cautious, in standard deviations, each compile of what does not fit makes.
_CAUTION = 0.5
_MOST_CAUTION = 2.0


def compiles_for(
    place: Place,
    settings: CompileSettings,
    *,
    limit_s: float = COMPILE_SECONDS,
    progress: Progress | None = None,
) -> LimitedCompiles:
    """Return the compiles that one plan may take.

    Args:
      place: The place to plan for.
      settings: How to compile.
      limit_s: Seconds that they may take together.
      progress: Called with a text that says what is being done.
    """
    most = most_compiles(place)
    return LimitedCompiles(place, settings, limit_s=limit_s, most=most, progress=progress)


def most_compiles(place: Place) -> int:
    """Return how many variants of a program may be compiled for one plan."""
    return MOST_COMPILES if has_estimate(place) else MOST_COMPILES_WITHOUT_ESTIMATE


class Confirmation:
    """Searches, compiles what is found, learns from it, and searches again.

    What is compiled is a variant as it was traced. Its code is traced before, and only what gives
    the same figures as the variant, or cannot be traced, is compiled. Where nothing of that fits,
    code that gives other figures is compiled itself.

    Args:
      search: The search; it need not have run.
      peaks: What the peaks of its variants are taken to be.
      drafts: Writes variants as code, and traces that.
      compiles: What compiles.
      budget: Bytes that XLA's figure has to fit into.

    Attributes:
      is_cut_short: Whether time was up, or the compiler failed, before there was an answer.
      errors: What the compiler failed with.
      triton_nbytes: The peaks with Triton's matmuls of the variants that need more with cuBLAS's.
    """

    def __init__(
        self,
        search: Search,
        peaks: Peaks,
        drafts: Drafts,
        compiles: LimitedCompiles,
        budget: int,
    ) -> None:
        self.is_cut_short = False
        self.errors: tuple[str, ...] = ()
        self.triton_nbytes: dict[TracedVariant, int] = {}
        self._search, self._peaks, self._drafts = search, peaks, drafts
        self._compiles, self._budget = compiles, budget
        self._asked: list[TracedVariant] = []
        self._has_searched = False
        self._has_estimate = has_estimate(compiles.place)
        self._most = most_compiles(compiles.place)

    def run(self) -> Draft | None:
        """Return the cheapest plan that fits by XLA's figures, or else that of the lowest figure.

        None where it was cut short before anything was found to fit.
        """
        if not self._has_estimate:
            # No other figures of the code as it is are shown.
            found = [self._search.trial({}), self._search.as_written()]
            self._ask([t for t in dict.fromkeys(found) if t is not None])
        while not self.is_cut_short and len(self._asked) < self._most:
            draft = self._next_in_time()
            if draft is None:
                break
            self._ask([draft.tried])
        self._peaks.caution = 0.0
        self._ask_code()
        fitting = self._fitting()
        if fitting is not None or (self.is_cut_short and self._has_estimate):
            return fitting
        return self._drafts.first(self._among_known(self._peaks.of), _never, takes_doubted=True)

    def remarks(self) -> Iterator[str]:
        """Yield warnings about what kept the compiler from an answer."""
        on = self._compiles.place.text
        yield from (f"not compiled for {on}: {error}" for error in self.errors)
        if self.is_cut_short and not self.errors:
            late = ", ".join(self._compiles.unconfirmed)
            left_out = f"; not confirmed: {late}" if late else ""
            yield (
                f"the time for compiling was up before {on} was asked about all that may be"
                f" cheaper{left_out}; --compile-time gives more"
            )

    def _ask_code(self) -> None:
        """Have code compiled that gives something else than its variant, until code fits.

        One edit may change several loops, as where each goes through the same line.
        """
        budget = self._budget
        for draft in sorted(self._drafts.differing(), key=lambda d: d.figures.peak_nbytes > budget):
            fitting = self._fitting()
            if fitting is not None and not self._drafts.is_doubted(fitting):
                return
            if self.is_cut_short or len(self._asked) >= self._most:
                return
            code = self._drafts.as_written(draft, self._search.cost)
            if code is not None:
                self._ask([code])

    def _ask(self, variants: Sequence[TracedVariant]) -> None:
        """Have variants compiled, and learn their figures."""
        programs = [
            PolicyProgram(description(t.combination), t.variant.trace, t.variant.program)
            for t in variants
        ]
        self._asked += variants
        rows = self._compiles.compiled(programs, self._budget)
        for tried, row in zip(variants, rows, strict=True):
            nbytes = None if row is None else row.needed_for(self._budget)
            if row is None or (nbytes is None and row.cublas_error and not self._compiles.left_s):
                self.is_cut_short = True
            elif nbytes is None:
                error = row.error or row.cublas_error or "no figures"
                self.errors = tuple(dict.fromkeys((*self.errors, error)))
            else:
                self._peaks.learn(tried, nbytes)
                if row.peak_nbytes is not None and row.peak_nbytes < nbytes:
                    self.triton_nbytes[tried] = row.peak_nbytes
        self.is_cut_short |= bool(self.errors) and not self._peaks.figures

    def _next_in_time(self) -> Draft | None:
        """Return what to compile next; None where nothing is worth it, or the time is up.

        The first search is the plan's own; what compiles lead to takes of their time.
        """
        if not self._has_searched:
            self._has_searched = True
            return self._next()
        if not self._compiles.left_s:
            self.is_cut_short = True
            return None
        start = time.monotonic()
        self._search.stop(start + self._compiles.left_s)
        draft = self._next()
        self._search.stop(math.inf)
        self._compiles.spend(time.monotonic() - start)
        self.is_cut_short = not self._compiles.left_s
        return None if self.is_cut_short else draft

    def _next(self) -> Draft | None:
        """Return what to compile next; None where nothing is worth a compile."""
        fitting = self._fitting()
        count = len(self._asked)
        if fitting is not None:
            self._peaks.caution = 0.0
            self._search.run()
            return self._cheaper(fitting)
        self._peaks.caution = min(_CAUTION * max(count - 1, 0), _MOST_CAUTION)
        self._search.run()
        draft = None
        if count < max(self._most - 1, 1):
            draft = self._drafts.first(self._unasked(self._search.best), _never)
        if draft is None:
            draft = self._drafts.first(self._unasked(self._likeliest), _never)
            if draft is not None and self._peaks.figures and self._is_hopeless(draft.tried):
                return None
        return draft

    def _is_hopeless(self, tried: TracedVariant) -> bool:
        """Return whether a variant will not fit, and will hardly be lower than what is known."""
        lowest = min(self._peaks.figures.values())
        return self._chance(tried) < _HOPELESS and self._peaks.of(tried) > _LOWER * lowest

    def _cheaper(self, fitting: Draft) -> Draft | None:
        """Return what promises to be cheaper than a plan that fits; None where nothing does."""
        worth = max(self._search.slack, _AS_GOOD * fitting.tried.cost)
        curious = _CURIOUS if self._has_estimate else _CURIOUS_WITHOUT_ESTIMATE
        least = _MAY_FIT if len(self._asked) < curious else 0.5

        def promising(excluding: Container[TracedVariant]) -> TracedVariant | None:
            found = [
                t
                for t in self._search.tried
                if t not in excluding
                and fitting.tried.cost - t.cost > worth
                and self._chance(t) >= least
            ]
            saved = lambda t: self._chance(t) * (fitting.tried.cost - t.cost)  # noqa: E731
            return max(found, key=saved, default=None)

        draft = self._drafts.first(self._unasked(promising), _never)
        is_worse = draft is not None and self._drafts.is_doubted(draft) and fitting.doubt is None
        return None if is_worse else draft

    def _fitting(self) -> Draft | None:
        """Return the cheapest plan that fits by XLA's figures."""
        ranked = self._among_known(lambda t: (t.cost, t.effort, t.changes), self._budget)
        return self._drafts.first(ranked, _never)

    def _likeliest(self, excluding: Container[TracedVariant]) -> TracedVariant | None:
        left = [t for t in self._search.tried if t not in excluding]
        return max(
            left, key=lambda t: (round(self._chance(t), 3), -self._peaks.of(t)), default=None
        )

    def _chance(self, tried: TracedVariant) -> float:
        return self._peaks.chance(tried, self._budget)

    def _among_known(
        self, order: Callable[[TracedVariant], Any], most: float = math.inf
    ) -> Callable[[Sequence[TracedVariant]], TracedVariant | None]:
        """Return a function of what is excluded; it returns the first with a figure of XLA's."""

        def ranked(excluding: Container[TracedVariant]) -> TracedVariant | None:
            figures = self._peaks.figures
            left = [t for t, n in figures.items() if n <= most and t not in excluding]
            return min(left, key=order, default=None)

        return ranked

    def _unasked(
        self, ranked: Callable[[Sequence[TracedVariant]], TracedVariant | None]
    ) -> Callable[[Sequence[TracedVariant]], TracedVariant | None]:
        return lambda excluding: ranked([*excluding, *self._asked])


def description(combination: Combination) -> str:
    """Return in a line what is done at each place: `gpt.py:49 (layer): dots_saveable`."""
    parts = []
    for place, runs in combination.items():
        if all(option.choice is None for option, _ in runs):
            continue
        texts = [_option_text(option) for option, _ in runs]
        if len(runs) > 1:
            texts = [f"{count}x {text}" for text, (_, count) in zip(texts, runs, strict=True)]
        parts.append(f"{place}: {', '.join(texts)}")
    return "; ".join(parts) or "no checkpoint"


def _option_text(option: Option) -> str:
    if option.choice is None:
        return "no checkpoint"
    if option.checkpoints is not None:
        return f"checkpoints={option.checkpoints}"
    made = option.policy or "checkpoint"
    if option.segments:
        return f"{made} around segments of {' of '.join(map(str, option.segments))}"
    return made


def _never(figures: PlanFigures) -> bool:
    return False

"""Choose how many carries a solver's loop keeps, for a budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jaxresid.advice.plan.search.combinations import TracedVariant
from jaxresid.advice.plan.search.options import Option
from jaxresid.advice.plan.search.trials import Trials
from jaxresid.base.errors import JaxresidError
from jaxresid.inspector.variants.choices import Choice
from jaxresid.inspector.variants.solver_checkpoints import CheckpointedLoop
from jaxresid.inspector.variants.solver_variants import Solver

# Each is a trace of the whole function.
_MOST_TRACES = 5
_MOST_STARTS = 5


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """A number of checkpoints, with the peak that it was traced to have.

    Attributes:
      count: the number.
      peak_nbytes: the estimated peak.
    """

    count: int
    peak_nbytes: float


def most_that_fit(
    loop: CheckpointedLoop,
    peak_nbytes: float,
    budget_nbytes: int,
    peak_of: Callable[[int], float],
) -> Checkpoints:
    """Return the most checkpoints with which a program fits, as these recompute least.

    The peak of each that is tried is traced; between two of them it is taken to be a line. Where
    nothing fits, it is as many as the logarithm of the steps, below which recomputation grows much
    faster than memory falls.

    Args:
      loop: the loop.
      peak_nbytes: the peak with the checkpoints that it keeps.
      budget_nbytes: the budget.
      peak_of: traces the program with a number of checkpoints, and returns its peak.
    """
    least = max(1, min((loop.steps or 1).bit_length(), loop.checkpoints - 1))
    below = Checkpoints(least, peak_of(least))
    if below.peak_nbytes > budget_nbytes:
        return below
    above = Checkpoints(loop.checkpoints, peak_nbytes)
    for _ in range(_MOST_TRACES - 1):
        if above.count - below.count < 2:
            break
        slope = (above.peak_nbytes - below.peak_nbytes) / (above.count - below.count)
        room = (budget_nbytes - below.peak_nbytes) / slope if slope > 0 else 0
        count = min(max(below.count + int(room), below.count + 1), above.count - 1)
        tried = Checkpoints(count, peak_of(count))
        if tried.peak_nbytes <= budget_nbytes:
            below = tried
        else:
            above = tried
    return below


def keeping_option(count: int) -> Option:
    """Return the option of another number of carries than the code says."""
    return Option(Choice(checkpoints=count))


def try_counts(search: Trials, solver: Solver) -> None:
    """Try the most carries with which it fits, beside what was tried at the other places.

    Args:
      search: The search, which has tried what can be done there.
      solver: The loop.
    """
    for start in _starts(search):
        best = search.best()
        if best is not None and best.cost <= start.cost:  # fewer carries cost more
            return

        def peak_of(count: int, start: TracedVariant = start) -> float:
            others = search.others(solver.place, start)
            tried = search.trial({**others, solver.place: keeping_option(count)})
            if tried is None:
                raise JaxresidError(f"it cannot be traced with checkpoints={count}")
            return search.peak(tried)

        try:
            most_that_fit(solver.loop, search.peak(start), search.budget, peak_of)
        except JaxresidError:  # it has other places then
            continue


def _starts(search: Trials) -> list[TracedVariant]:
    """Return what does not fit and is beaten by nothing in both peak and cost, cheapest first.

    Of many it is the cheapest ones and the one of the lowest peak.
    """
    found: list[TracedVariant] = []
    for tried in sorted(search.tried, key=lambda t: (t.cost, search.peak(t))):
        is_lower = not found or search.peak(tried) < search.peak(found[-1])
        if is_lower and not search.fits(tried):
            found.append(tried)
    return [*found[: _MOST_STARTS - 1], *found[_MOST_STARTS - 1 :][-1:]]

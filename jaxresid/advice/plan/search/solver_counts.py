"""Choose how many carries a solver's loop keeps, for a budget."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from jaxresid.advice.plan.search.combinations import TracedVariant
from jaxresid.advice.plan.search.options import Option
from jaxresid.base.errors import JaxresidError
from jaxresid.inspector.variants.choices import Choice
from jaxresid.inspector.variants.solver_checkpoints import CheckpointedLoop
from jaxresid.inspector.variants.solver_variants import Solver

if TYPE_CHECKING:
    from jaxresid.advice.plan.search.trials import Trials

# Each is a trace of the whole function.
_MOST_TRACES = 5
_MOST_STARTS = 5


def most_that_fit(
    loop: CheckpointedLoop,
    peak_nbytes: float,
    budget_nbytes: int,
    peak_of: Callable[[int], float],
) -> int:
    """Return the most checkpoints with which a program fits, as these recompute least.

    The peak of each that is tried is traced; between two of them it is taken to be a line. Where
    nothing fits, it is as many as the logarithm of the steps, below which recomputation grows much
    faster than memory falls.
    """
    least = max(1, min((loop.steps or 1).bit_length(), loop.checkpoints - 1))
    below, below_nbytes = least, peak_of(least)
    above, above_nbytes = loop.checkpoints, peak_nbytes
    if below_nbytes > budget_nbytes:
        return below
    for _ in range(_MOST_TRACES - 1):
        if above - below < 2:
            break
        slope = (above_nbytes - below_nbytes) / (above - below)
        room = (budget_nbytes - below_nbytes) / slope if slope > 0 else 0
        count = min(max(below + int(room), below + 1), above - 1)
        nbytes = peak_of(count)
        if nbytes <= budget_nbytes:
            below, below_nbytes = count, nbytes
        else:
            above, above_nbytes = count, nbytes
    return below


def try_counts(search: Trials, solver: Solver) -> None:
    """Try the most carries with which it fits, beside what was tried at the other places."""
    for start in _starts(search):
        best = search.best()
        if best is not None and best.cost <= start.cost:  # fewer carries cost more
            return

        def peak_of(count: int, start: TracedVariant = start) -> float:
            others = search.others(solver.place, start)
            tried = search.trial({**others, solver.place: Option(Choice(checkpoints=count))})
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
    unbeaten: list[TracedVariant] = []
    for tried in sorted(search.tried, key=lambda t: (t.cost, search.peak(t))):
        is_lower = not unbeaten or search.peak(tried) < search.peak(unbeaten[-1])
        if is_lower and not search.fits(tried):
            unbeaten.append(tried)
    return [*unbeaten[: _MOST_STARTS - 1], *unbeaten[_MOST_STARTS - 1 :][-1:]]

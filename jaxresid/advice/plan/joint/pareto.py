"""The plans that no other beats in both their peak and what is minimised."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from jaxresid.advice.plan.confirmation import description
from jaxresid.advice.plan.joint.search import Solved
from jaxresid.advice.plan.search.combinations import Combination, Runs, TracedVariant
from jaxresid.results import FrontRow, answer


@dataclass(frozen=True, slots=True, eq=False)
class Point:
    """A plan that was traced.

    Attributes:
      solved: Its configuration.
      tried: The plan.
      peak_nbytes: Its peak.
      cost: What is minimised besides.
    """

    solved: Solved
    tried: TracedVariant
    peak_nbytes: int
    cost: float


def front_rows(solved: Sequence[Solved], shown: TracedVariant | None) -> tuple[FrontRow, ...]:
    """Return the plans that no other beats, the lowest peak first.

    Of several configurations they are those within the budget.

    Args:
      solved: The configurations.
      shown: The plan that is chosen, which is among them whether another beats it or not.
    """
    found = front([point for each in solved for point in _points(each, len(solved) > 1)], shown)
    return tuple(_row(point, is_chosen=point.tried is shown) for point in found)


def front(points: Sequence[Point], shown: TracedVariant | None) -> list[Point]:
    """Return the points that no other beats in both peak and cost, and the one that is shown."""
    found: list[Point] = []
    for point in sorted(points, key=lambda p: (p.peak_nbytes, p.cost)):
        if not found or point.cost < min(p.cost for p in found):
            found.append(point)
    chosen = next((p for p in points if p.tried is shown), None)
    if chosen is not None and chosen not in found:
        found = [p for p in found if _key(p) != _key(chosen)]
        found = sorted([*found, chosen], key=_key)
    return found


def _words(combination: Combination) -> str:
    """Return what is done at each place in words, short where the functions' names tell them."""
    text = description(combination)
    names = Counter(place.function for place, runs in combination.items() if _is_made(runs))
    for place, runs in combination.items():
        if _is_made(runs) and names[place.function] == 1:
            text = text.replace(f"{place}: ", f"{place.function}: ", 1)
    return text


def _is_made(runs: Runs) -> bool:
    return any(option.choice is not None for option, _ in runs)


def _key(point: Point) -> tuple[int, float]:
    return point.peak_nbytes, point.cost


def _points(solved: Solved, are_several: bool) -> list[Point]:
    """Return what was tried of a configuration; of several what it costs is the time of an item."""
    points = []
    objective, by_time = solved.planning.objective, solved.planning.by_time
    for tried in solved.planning.search.tried:
        peak = solved.planning.shown_nbytes(tried)
        if peak is None or (are_several and peak > solved.planning.budget_nbytes):
            continue
        cost = solved.seconds_per_item(tried) if are_several or by_time else None
        if cost is None:
            cost = objective.recompute_fraction(tried.variant)
        points.append(Point(solved, tried, peak, cost))
    return points


def _row(point: Point, *, is_chosen: bool) -> FrontRow:
    planning, tried, peak = point.solved.planning, point.tried, point.peak_nbytes
    around = None
    if tried not in planning.peaks.figures:
        around = planning.subject.interval(peak, tried.variant.lowered.program)
    seconds, items = planning.objective.seconds(tried.variant), point.solved.items
    budget = planning.budget_nbytes
    is_known = "fits" if peak <= budget else "does not fit"
    return FrontRow(
        configuration=point.solved.configuration,
        checkpoints=_words(tried.combination),
        peak_nbytes=peak,
        answer=answer(around, budget) if around else is_known,  # type: ignore[arg-type]
        recompute_flops=max(tried.variant.cost.flops - planning.plain.cost.flops, 0),
        recompute_fraction=planning.objective.recompute_fraction(tried.variant),
        seconds=seconds,
        items_per_s=items / seconds if items and seconds else None,
        chosen=is_chosen,
        low_nbytes=around.low_nbytes if around else None,
        high_nbytes=around.high_nbytes if around else None,
    )

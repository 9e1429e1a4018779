"""Search for one option at the first of a place's several calls and another at the others.

The first ones, since what the later calls keep is free again when the backward pass comes to them.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jaxresid.advice.plan.search.combinations import Chosen, TracedVariant
from jaxresid.advice.plan.search.options import Option
from jaxresid.inspector.variants.choices import CheckpointPlace

if TYPE_CHECKING:
    from jaxresid.advice.plan.search.trials import Trials

# How often the number of calls is looked for where the peaks tell, before it is bisected.
_INTERPOLATIONS = 3


def try_splits(search: Trials) -> None:
    """Try of options that fit at all calls and options that do not as many calls as needed."""
    for menu in search.menus:
        place = menu.place
        if place.calls < 2 or not place.can_split:
            continue
        best = search.best()
        if best is None:
            return
        others = search.others(place, best)
        alone = [(o, search.known({**others, place: o})) for o in menu.options]
        tried_alone = [_Alone(o, t) for o, t in alone if t is not None]
        fitting = [option for option in tried_alone if search.fits(option.tried)]
        not_fitting = [option for option in tried_alone if not search.fits(option.tried)]
        pairs = [
            (_guess(search, heavy, light), heavy, light)
            for heavy in fitting
            for light in not_fitting
            if light.tried.cost < heavy.tried.cost
        ]
        for guess, heavy, light in sorted(pairs, key=lambda pair: pair[0]):
            best = search.best()
            if best is None or guess > best.cost:
                break
            _divide(search, place, heavy, light, others)


@dataclass(frozen=True, slots=True)
class _Alone:
    """An option, and what comes of it at all calls of a place."""

    option: Option
    tried: TracedVariant


def _divide(
    search: Trials, place: CheckpointPlace, heavy: _Alone, light: _Alone, others: Chosen
) -> None:
    """Find the fewest first calls that have to be under `heavy`, unless that is no cheaper.

    Peaks and costs go nearly evenly with the number of calls: it is looked for where the budget is
    met then, and by bisection where that does not find it at once.
    """
    low, high = 0, place.calls  # high fits
    above, below = search.peak(light.tried), search.peak(heavy.tried)
    for number in itertools.count():
        best = search.best()
        if high - low < 2 or best is None or _cost(place, heavy, light, low + 1) > best.cost:
            return
        middle = (low + high) // 2
        if number < _INTERPOLATIONS:
            share = (above - search.budget) / max(above - below, 1)
            middle = min(max(low + math.ceil(share * (high - low)), low + 1), high - 1)
        runs = ((heavy.option, middle), (light.option, place.calls - middle))
        tried = search.trial({**others, place: runs})
        if tried is None:
            return
        if search.fits(tried):
            high, below = middle, search.peak(tried)
        else:
            low, above = middle, search.peak(tried)


def _cost(place: CheckpointPlace, heavy: _Alone, light: _Alone, count: int) -> float:
    """Return the cost of a mixture with so many calls under `heavy`, if costs go evenly."""
    return light.tried.cost + count / place.calls * (heavy.tried.cost - light.tried.cost)


def _guess(search: Trials, heavy: _Alone, light: _Alone) -> float:
    """Return the cost of a mixture, if peak and cost go evenly with the number of calls."""
    most, least = search.peak(light.tried), search.peak(heavy.tried)
    share = (most - search.budget) / max(most - least, 1)
    return light.tried.cost + min(max(share, 0.0), 1.0) * (heavy.tried.cost - light.tried.cost)

"""Search for one option at the first of a place's several calls and another at the others.

The first ones, since what the later calls keep is free again when the backward pass comes to them.
"""

from __future__ import annotations

from jaxresid.advice.plan.search.combinations import TracedVariant
from jaxresid.advice.plan.search.options import Option
from jaxresid.advice.plan.search.trials import Chosen, Trials
from jaxresid.inspector.variants.choices import CheckpointPlace


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
        known = [(o, t) for o, t in alone if t is not None]
        fitting = [(o, t) for o, t in known if search.fits(t)]
        not_fitting = [(o, t) for o, t in known if not search.fits(t)]
        pairs = [
            (_guess(search, a, b), heavy, light)
            for heavy, a in fitting
            for light, b in not_fitting
            if b.cost < a.cost
        ]
        for guess, heavy, light in sorted(pairs, key=lambda pair: pair[0]):
            best = search.best()
            if best is None or guess > best.cost:
                break
            _bisect(search, place, heavy, light, others)


def _bisect(
    search: Trials,
    place: CheckpointPlace,
    heavy: Option,
    light: Option,
    others: Chosen,
) -> None:
    """Find by bisection the fewest first calls that have to be under `heavy`."""
    low, high = 0, place.calls  # high fits
    while high - low > 1:
        middle = (low + high) // 2
        runs = ((heavy, middle), (light, place.calls - middle))
        tried = search.trial({**others, place: runs})
        if tried is None:
            return
        if search.fits(tried):
            high = middle
        else:
            low = middle


def _guess(search: Trials, heavy: TracedVariant, light: TracedVariant) -> float:
    """Return the cost of a mixture, if peak and cost go evenly with the number of calls."""
    most, least = search.peak(light), search.peak(heavy)
    share = (most - search.budget) / max(most - least, 1)
    return light.cost + min(max(share, 0.0), 1.0) * (heavy.cost - light.cost)

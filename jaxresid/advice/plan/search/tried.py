"""Say what a search tried at each place, and whether something cheaper may be among the rest."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable

from jaxresid.advice.plan.search.combinations import TracedVariant
from jaxresid.advice.plan.search.options import Menu
from jaxresid.advice.plan.search.search import Search
from jaxresid.results import PlannedValue, TriedPlace

NO_POLICY = "no policy"


def tried_places(search: Search) -> tuple[TriedPlace, ...]:
    """Return what was tried at each place where a checkpoint was, and of the loops changed."""
    found = []
    for menu in search.menus:
        written = _written_at(menu, search.tried)
        if not written:
            continue
        by_name = {(o.policy, o.values) for o in menu.front}
        policies = tuple(p or NO_POLICY for p, values in written if not values)
        found.append(
            TriedPlace(
                str(menu.place),
                policies,
                sum(each in by_name for each in written),
                len(by_name) if menu.front and menu.complete else None,
            )
        )
    for place in search.nested:
        ways = {o for t in search.tried for o, _ in t.combination.get(place, ()) if o.segments}
        if ways:
            found.append(TriedPlace(str(place), (), segments=len(ways)))
    if search.solver is not None:
        place = search.solver.place
        options = (o for t in search.tried for o, _ in t.combination[place])
        kept = {o.checkpoints for o in options if o.checkpoints is not None}
        if kept:
            found.append(TriedPlace(str(place), (), checkpoints=tuple(sorted(kept))))
    return tuple(found)


def is_proven(search: Search, shown: TracedVariant, figures: Container[TracedVariant]) -> bool:
    """Return whether each choice that could be cheaper than what is shown, or fit, was traced.

    That is so where nothing is recomputed; and at one place of one call, or loop, with its whole
    front tried, where no other place could have a checkpoint beside it. What the compiler says of a
    choice is only known where it was asked; and where time is minimised, a sum over values does not
    tell what their kernels take together.

    Args:
      search: The search, which ran to its end.
      shown: The variant that is shown.
      figures: The variants that the compiler said figures of.
    """
    if search.may_pay:
        return False
    best = search.best()
    if best is not None and best.cost <= 0:
        return shown is best
    searched = [menu for menu in search.menus if menu.front]
    if figures or len(searched) != 1 or not search.every_front:
        return False
    if search.solver is not None:  # between the numbers that were tried are others
        return False
    (only,) = searched
    if only.place.calls > 1 and only.place.can_split:
        return False
    if any(search.may_combine(only.place, m.place) for m in search.menus if m is not only):
        return False
    if search.leaves_out_segments(math.inf if best is None else best.cost):
        return False
    return (best is None or shown is best) and all(
        search.known({only.place: option}) is not None
        for option in only.front
        if best is None or (option.cost or 0.0) < best.cost
    )


def _written_at(
    menu: Menu, tried: Iterable[TracedVariant]
) -> tuple[tuple[str | None, tuple[PlannedValue, ...]], ...]:
    """Return the policies, with the values that they save, of what was tried at a place."""
    found = dict.fromkeys(
        (option.policy, option.values)
        for each in tried
        for option, _ in each.combination.get(menu.place, ())
        if option.choice is not None
    )
    return tuple(found)

"""Exchange what is done with single values: recompute, save or offload them.

Fronts rank choices by the bytes that they keep. Where values may be offloaded that leaves out some
that are best: what is made again takes memory as well while the backward pass makes it, and a value
that is brought back spares that. Only the trace tells, so that from the best found on, and from
where nothing is kept, the treatment of one value after the other is exchanged while that helps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxresid.advice.plan.search.combinations import TracedVariant
from jaxresid.advice.plan.search.options import Menu, Option

if TYPE_CHECKING:
    from jaxresid.advice.plan.search.trials import Trials


def try_exchanges(search: Trials, most: int) -> None:
    """Try at each place whose values may be offloaded other treatments of single values.

    Args:
      most: How many variants to trace for one place, at the most.
    """
    for menu in search.menus:
        if menu.exchanged is None or not menu.front:
            continue
        left = len(search.tried) + most
        for option, start in _starts(search, menu):
            _descend(search, menu, option, start, left)


def _starts(search: Trials, menu: Menu) -> list[tuple[Option, TracedVariant]]:
    best = search.best() or search.lowest()
    if best is None:
        return []
    bare = search.trial({**search.others(menu.place, best), menu.place: menu.front[-1]})
    starts = [] if bare is None else [(menu.front[-1], bare)]
    runs = best.combination[menu.place]
    if len(runs) == 1 and runs[0][0].choosing is not None:
        starts.append((runs[0][0], best))
    return starts


def _descend(search: Trials, menu: Menu, option: Option, start: TracedVariant, left: int) -> None:
    assert menu.exchanged is not None
    others = search.others(menu.place, start)
    is_better = True
    while is_better:
        is_better = False
        for other in menu.exchanged(option):
            if len(search.tried) >= left:
                return
            tried = search.trial({**others, menu.place: other})
            if tried is not None and _rank(search, tried) < _rank(search, start):
                option, start, is_better = other, tried, True
                break


def _rank(search: Trials, tried: TracedVariant) -> tuple[float, float]:
    """Return what an exchange has to lower: by how much it does not fit, then the cost."""
    return max(search.peak(tried) - search.budget, 0.0), tried.cost

"""Choose the one thing to do after a plan that is not known to fit."""

from __future__ import annotations

from dataclasses import replace

from jaxresid.base.text.units import format_bytes
from jaxresid.inspector.next_step import ask_compiler
from jaxresid.results import NextStep, Plan
from jaxresid.xla.places import Place, why_unavailable


def next_step(plan: Plan, place: Place, words: tuple[str, ...]) -> NextStep | None:
    """Return what to do next; None where the plan fits, or nothing is known that would help.

    Args:
      plan: the plan.
      place: the place that it is for.
      words: the words of the command line that ask for it, as `NextStep` has them.
    """
    if plan.fits or plan.interrupted:
        return None
    reliefs = plan.floor.reliefs
    fitting = [each for each in reliefs if each.answer == "fits"]
    if plan.answer == "too close" and not (plan.compiles or plan.unconfirmed):
        rewrites = [each for each in fitting if each.kind == "rewrite"]
        if not rewrites:
            return replace(ask_compiler("plan", why_unavailable(place)), words=words)
        fitting = rewrites
    if not reliefs:
        return None
    best = fitting[0] if fitting else min(reliefs, key=lambda each: each.peak_nbytes)
    peak = f"the peak is then {format_bytes(best.peak_nbytes)}"
    return NextStep("change", f"{best.change}: {peak}{', which fits' * bool(fitting)}")

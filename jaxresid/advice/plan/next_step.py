"""Choose the one thing to do after a plan that is not known to fit."""

from __future__ import annotations

from dataclasses import replace

from jaxresid.inspector.next_step import ask_compiler
from jaxresid.model import NextStep, Plan
from jaxresid.text.units import format_bytes
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
    if plan.answer == "too close" and not (plan.compiles or plan.unconfirmed):
        return replace(ask_compiler("plan", why_unavailable(place)), words=words)
    reliefs = plan.floor.reliefs
    if not reliefs:
        return None
    fitting = [each for each in reliefs if each.answer == "fits"]
    best = fitting[0] if fitting else min(reliefs, key=lambda each: each.peak_nbytes)
    peak = format_bytes(best.peak_nbytes)
    reached = f"the peak is then {peak}, which fits" if fitting else f"the peak is then {peak}"
    return NextStep("none", f"{best.change}: {reached}", best.saved_nbytes)

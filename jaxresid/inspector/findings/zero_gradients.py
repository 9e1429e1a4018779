"""Word the finding about what an optimizer keeps for weights that get no gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jaxresid.base.text.units import format_bytes
from jaxresid.inspector.call.jitted_by import jitted_function
from jaxresid.inspector.findings.donation import source_of_step
from jaxresid.inspector.findings.proposals import PeakEffect
from jaxresid.inspector.program.zero_gradients import NeedlessMoments
from jaxresid.inspector.trace.step import StepTrace
from jaxresid.results import Finding

NEEDLESS = "moments-without-gradient"


def needless_moments_findings(
    fun: Callable[..., Any], step: StepTrace, found: NeedlessMoments, effect: PeakEffect
) -> Iterator[Finding]:
    """Yield the finding about moments of weights whose gradient is zero, if it is worth saying.

    Args:
      fun: the step as the user has it.
      step: its trace.
      found: the weights and the moments.
      effect: what leaving out the moments does to the peak.
    """
    if not effect.is_worth_saying:
        return
    name = jitted_function(fun).name
    yield Finding(
        NEEDLESS,
        f"{name} keeps {format_bytes(found.moments_nbytes)} of optimizer state for"
        f" {format_bytes(found.weights_nbytes)} of weights whose gradient is zero whatever the"
        f" batch is ({_listed(found.weights)}): they are behind a stop_gradient, or no loss reads"
        f" them. Without that state {effect.text}",
        source_of_step(fun, step),
        help="give the optimizer the trained weights alone: pass the frozen ones as an argument of"
        " their own, or optax.partition({'train': optimizer, 'freeze': optax.set_to_zero()},"
        " labels) (optax.multi_transform in older versions)",
        measured={
            "weights": list(found.weights),
            "moments": list(found.moments),
            "weights_nbytes": found.weights_nbytes,
            "moments_nbytes": found.moments_nbytes,
            **effect.measured,
        },
    )


def _listed(paths: Sequence[str]) -> str:
    return paths[0] if len(paths) == 1 else f"{len(paths)} arrays, first {paths[0]}"

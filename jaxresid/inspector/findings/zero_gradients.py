"""Word the finding about what an optimizer keeps for weights that get no gradient."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jaxresid.base.text.units import format_bytes
from jaxresid.inspector.call.jitted_by import jitted_function
from jaxresid.inspector.findings.donation import source_of_step
from jaxresid.inspector.findings.proposals import PeakEffect
from jaxresid.inspector.findings.search import FindingContext, FindingSearch
from jaxresid.inspector.memory.lowered import lower
from jaxresid.inspector.memory.peak import peak_nbytes
from jaxresid.inspector.program.zero_gradients import needless_moments
from jaxresid.results import Finding

NAME = "moments-without-gradient"


def moments_without_gradient(context: FindingContext) -> Iterator[Finding]:
    """Yield the finding about moments of weights whose gradient is zero, if it is worth saying."""
    subject, step = context.subject, context.subject.step
    if step is None or subject.peak is None:
        return
    needless = needless_moments(step, subject.program)
    if needless is None:
        return
    nbytes = peak_nbytes(lower(needless.program, subject.profile))
    around = subject.interval(nbytes, needless.program)
    effect = PeakEffect(subject.peak.nbytes, nbytes, "estimate", around)
    if not effect.is_worth_saying:
        return
    name = jitted_function(subject.fun).name
    yield Finding(
        NAME,
        f"{name} keeps {format_bytes(needless.moments_nbytes)} of optimizer state for"
        f" {format_bytes(needless.weights_nbytes)} of weights whose gradient is zero whatever the"
        f" batch is ({_listed(needless.weights)}): they are behind a stop_gradient, or no loss"
        f" reads them. Without that state {effect.text}",
        source_of_step(subject.fun, step),
        help="give the optimizer the trained weights alone: pass the frozen ones as an argument of"
        " their own, or optax.partition({'train': optimizer, 'freeze': optax.set_to_zero()},"
        " labels) (optax.multi_transform in older versions)",
        measured={
            "weights": list(needless.weights),
            "moments": list(needless.moments),
            "weights_nbytes": needless.weights_nbytes,
            "moments_nbytes": needless.moments_nbytes,
            **effect.measured,
        },
    )


def _listed(paths: Sequence[str]) -> str:
    return paths[0] if len(paths) == 1 else f"{len(paths)} arrays, first {paths[0]}"


SEARCH = FindingSearch([NAME], "arguments", 3, moments_without_gradient)

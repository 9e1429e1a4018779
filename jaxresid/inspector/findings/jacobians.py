"""Find Jacobians taken row by row that have fewer columns, or the other way round.

The change is the program traced again with the calls of one line in the other mode.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from jaxresid import jax_compat
from jaxresid.base.errors import RetraceError
from jaxresid.base.text.units import format_flops
from jaxresid.inspector.findings.proposals import Changed, Proposal, change_effect
from jaxresid.inspector.findings.search import FindingContext
from jaxresid.inspector.jaxpr.bindings import user_line
from jaxresid.inspector.variants.rewrites.retraced import Retraced
from jaxresid.jax_compat import JacobianCall
from jaxresid.results import Finding, Location, Source

NAME = "costly-jacobian-mode"
_OTHER = {"jacfwd": "jacrev", "jacrev": "jacfwd"}


@dataclass(frozen=True, slots=True)
class _Sizes:
    """The numbers of columns and of rows of a Jacobian."""

    inputs: int
    outputs: int


def other_modes(
    context: FindingContext, location: Location | None, transform: str, least: float
) -> Iterator[Proposal]:
    """Yield the finding about the Jacobians of a line, if the other mode takes enough less.

    Args:
      context: what is searched.
      location: the line.
      transform: `jacfwd` or `jacrev`.
      least: how many bytes it has to take off the peak.
    """
    frames = context.levels.frames
    changed = list[_Sizes]()

    def change(call: JacobianCall) -> Callable[[Any], Any]:
        if call.transform != transform or user_line(frames) != location or not call.is_real:
            return call.mapped
        sizes = _Sizes(call.num_inputs, call.num_outputs)
        passes, others = sizes.outputs, sizes.inputs
        if transform == "jacfwd":
            passes, others = others, passes
        if passes <= others:
            return call.mapped
        changed.append(sizes)
        return call.by_other_mode

    with contextlib.suppress(RetraceError):
        retraced = context.subject.retraced(lambda: jax_compat.replacing_jacobian_calls(change))
        if changed and context.peak_nbytes - retraced.figures.peak_nbytes >= least:
            biggest = max(changed, key=lambda sizes: max(sizes.inputs, sizes.outputs))
            yield Proposal(
                _finding(context, retraced, location, transform, biggest),
                lambda: Changed(retraced.trace, retraced.program),
                change=f"jax.{_OTHER[transform]} in place of jax.{transform}",
            )


def _finding(
    context: FindingContext,
    retraced: Retraced,
    location: Location | None,
    transform: str,
    sizes: _Sizes,
) -> Finding:
    cost = context.subject.holes.cost(context.subject.trace)
    effect, measured = change_effect(context.report, cost, retraced.figures)
    fewer = cost.flops - retraced.figures.cost.flops
    if fewer > 0:
        effect += f", and {format_flops(fewer)} less are computed ({fewer / cost.flops:.1%})"
    n, m = f"{sizes.inputs} inputs", f"{sizes.outputs} outputs"
    if transform == "jacrev":
        what = f"jax.jacrev here takes the Jacobian of {m} by {n} in {sizes.outputs} rows"
        help = "jax.jacfwd(f) in place of jax.jacrev(f), with the same arguments"
    else:
        what = f"jax.jacfwd here takes the Jacobian of {m} by {n} in {sizes.inputs} columns"
        help = "jax.jacrev(f) in place of jax.jacfwd(f), with the same arguments"
    number = f"{sizes.inputs} columns" if transform == "jacrev" else f"{sizes.outputs} rows"
    return Finding(
        NAME,
        f"{what}, all at once. With jax.{_OTHER[transform]}, which takes it in {number}, the"
        f" {effect}",
        Source(location),
        help=help,
        measured={
            "transform": transform,
            "inputs": sizes.inputs,
            "outputs": sizes.outputs,
            **measured,
        },
    )

"""Find the residuals of a function that is differentiated."""

from __future__ import annotations

from jaxresid import jax_compat
from jaxresid.inspector.program.build import Program, value_and_gradients
from jaxresid.inspector.residuals.consumers import consumers
from jaxresid.inspector.residuals.marking import Marking
from jaxresid.inspector.residuals.numbering import FreeValues, Numbering
from jaxresid.inspector.residuals.provenance import provenance
from jaxresid.inspector.trace.function import Trace
from jaxresid.results import Residual


def residuals(traced: Trace, program: Program | None = None) -> tuple[Residual, ...]:
    """Return the residuals of a trace, in the order of the vjp function's leaves.

    Args:
      traced: the trace of the function.
      program: the program of the trace, where there is one already; it knows what is split over a
        mesh.
    """
    if program is None and traced.arguments.mesh is not None:
        program = value_and_gradients(traced)
    values = {} if program is None else program.values
    levels, (top, top_back) = traced.levels, traced.tops
    numbers, free = Numbering(levels).of(top.jaxpr), FreeValues(levels)
    marking = Marking(top, numbers, top.jaxpr.outvars[: traced.num_outputs], free, values)
    gradients = {v for v in top_back.jaxpr.outvars if not jax_compat.is_literal(v)}
    found = []
    for var, inside in zip(traced.kept, traced.read, strict=True):
        made = provenance(levels, top, var, traced.inputs)
        read = consumers(levels, top_back, inside)
        is_unread = not read and inside not in gradients
        found.append(marking.residual(var, made, read, is_unread=is_unread))
    return tuple(found)

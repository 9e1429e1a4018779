"""Find the residuals of a function that is differentiated."""

from __future__ import annotations

from dataclasses import replace

from jaxresid import jax_compat
from jaxresid.inspector.jaxpr.callsites import CallSites
from jaxresid.inspector.jaxpr.frames import Frames
from jaxresid.inspector.jaxpr.level import Level
from jaxresid.inspector.jaxpr.levels import Levels
from jaxresid.inspector.program.avals import aval_on
from jaxresid.inspector.program.build import Program, value_and_gradients
from jaxresid.inspector.residuals.consumers import consumers
from jaxresid.inspector.residuals.numbering import Free, Numbering
from jaxresid.inspector.residuals.provenance import provenance
from jaxresid.inspector.trace.function import Trace, has_checkpoints
from jaxresid.model import (
    Computed,
    Mark,
    Residual,
)


def residuals(
    traced: Trace, frames: Frames, program: Program | None = None
) -> tuple[Residual, ...]:
    """Return the residuals of a trace, in the order of the vjp function's leaves.

    Args:
      traced: the trace of the function.
      frames: reads the eqns' tracebacks.
      program: the program of the trace, where there is one already; it knows what is split over a
        mesh.
    """
    if program is None and traced.arguments.mesh is not None:
        program = value_and_gradients(traced)
    values = {} if program is None else program.values
    forward, backward = traced.forward, traced.backward
    sites, primal = None, None
    if has_checkpoints(traced, frames):
        sites, primal = CallSites(frames), jax_compat.open_jaxpr(traced.primal().jaxpr)
    ahead, top = Levels(frames, sites), Level(forward, primal=primal, inputs=traced.inputs)
    back, top_back = Levels(frames), Level(backward)
    paths = traced.inputs
    numbers, free = Numbering(ahead).of(forward), Free(ahead)
    outputs = {
        numbers[v] for v in forward.outvars[: traced.num_outputs] if not jax_compat.is_literal(v)
    }
    gradients = {v for v in backward.outvars if not jax_compat.is_literal(v)}
    seen: set[int] = set()
    found = []
    for var, inside in zip(traced.kept, traced.read, strict=True):
        made = provenance(ahead, top, var, paths)
        aval = aval_on(values, var)
        if made.memory == "host":
            aval = replace(aval, memory="host")
        marks = list(made.marks)
        if isinstance(made.origin, Computed):
            number = numbers[var]
            marks += [Mark.PRIMAL_OUTPUT] * (number in outputs)
            marks += [Mark.DUPLICATE] * (number in seen)
            marks += [Mark.FREE] * ((top, var) in free)
            marks += [Mark.OFFLOADED] * (aval.memory == "host")
            seen.add(number)
        read = consumers(back, top_back, inside)
        marks += [Mark.UNREAD] * (not read and inside not in gradients)
        found.append(Residual(aval, made.origin, made.trips, read, tuple(marks)))
    return tuple(found)

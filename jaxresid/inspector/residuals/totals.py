"""Count the bytes that a trace keeps for the backward pass."""

from __future__ import annotations

from jaxresid.inspector.jaxpr.frames import Frames
from jaxresid.inspector.jaxpr.level import Level
from jaxresid.inspector.jaxpr.levels import Levels
from jaxresid.inspector.program.avals import aval_on
from jaxresid.inspector.program.build import Program
from jaxresid.inspector.residuals.provenance import provenance
from jaxresid.inspector.trace.function import Trace


def kept(traced: Trace, frames: Frames, program: Program) -> tuple[int, int]:
    """Return the bytes of a trace's computed residuals in device and in host memory.

    They are counted as in `Report.totals`.

    Args:
      traced: the trace of the function.
      frames: reads the eqns' tracebacks.
      program: the program of the trace, see `build.value_and_gradients`.
    """
    levels, top = Levels(frames), Level(traced.forward)
    device = host = 0
    for var in traced.kept:
        made = provenance(levels, top, var, traced.inputs)
        if made.origin.kind != "computed":
            continue
        aval = aval_on(program.values, var)
        if "host" in (aval.memory, made.memory):
            host += aval.nbytes
        else:
            device += aval.nbytes
    return device, host

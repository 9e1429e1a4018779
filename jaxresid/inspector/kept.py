"""How many bytes a trace keeps for the backward pass."""

from __future__ import annotations

from jaxresid.inspector.avals import aval_of
from jaxresid.inspector.frames import Frames
from jaxresid.inspector.levels import Level, Levels
from jaxresid.inspector.provenance import provenance
from jaxresid.inspector.tracing import Trace


def kept(traced: Trace, frames: Frames) -> tuple[int, int]:
    """The bytes of a trace's computed residuals in device and in host memory, as `Report.totals`
    counts them."""
    levels, top = Levels(frames), Level(traced.forward)
    device = host = 0
    for var in traced.kept:
        made = provenance(levels, top, var, traced.inputs)
        if made.origin.kind != "computed":
            continue
        aval = aval_of(var)
        if "host" in (aval.memory, made.memory):
            host += aval.nbytes
        else:
            device += aval.nbytes
    return device, host

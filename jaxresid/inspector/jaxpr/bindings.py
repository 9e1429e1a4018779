"""What is read of the frames that run while JAX traces, and what a trace in a context leaves."""

from __future__ import annotations

from jaxresid import jax_compat
from jaxresid.inspector.jaxpr.frames import Frame, Frames
from jaxresid.inspector.jaxpr.nesting import eqns_in
from jaxresid.jax_compat.jaxpr_types import Jaxpr
from jaxresid.results import Location


def strip_trace_context(jaxpr: Jaxpr) -> None:
    """Remove the context of `jax_compat.intercept_bind` from the eqns of a jaxpr."""
    jax_compat.without_trace_context(eqns_in(jaxpr))


def user_line(frames: Frames) -> Location | None:
    """Return the user's innermost line among the frames that are running."""
    running: list[Frame] = []
    for code, lasti in jax_compat.running_code():
        kind = frames.kind(code.co_filename, code.co_qualname)
        if kind == "root":
            break
        if kind in ("user", "library", "jax"):
            running.append(Frame(code, lasti, kind))
    return frames.innermost_user(reversed(running))

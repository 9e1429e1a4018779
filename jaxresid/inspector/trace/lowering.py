"""Lower what was traced to a module for a compiler: no device, no user code, no libtpu.

Shardings, memory kinds and donation are in the module; whose devices they were meant for is
not. Every argument is a parameter of the module, whether or not anything reads it: its caller
holds it either way, and `jax.jit` would leave it out of its own account.
"""

from __future__ import annotations

import warnings
from typing import Any

from jaxresid import jax_compat
from jaxresid.base.errors import TraceError, summary
from jaxresid.inspector.trace.function import Trace
from jaxresid.inspector.trace.jitted import operands
from jaxresid.inspector.trace.traced import Lowerable, Traced
from jaxresid.jax_compat.jaxpr_types import Jaxpr
from jaxresid.xla.absent_devices import reason_not_lowered
from jaxresid.xla.job import LoweredModule


def lowered(traced: Traced, platform: str) -> LoweredModule:
    """Lower what users run: a function with its gradients, or the training step.

    The gradients are for cotangents of one. A gradient is split as the argument that it belongs to.
    A step gives away what it was jitted to give away, and its shardings and memory kinds are those
    that it was jitted with.

    Args:
      traced: the function or the training step.
      platform: `cpu`, `cuda` or `tpu`.

    Raises:
      TraceError: JAX cannot lower it for that platform.
    """
    return _module(traced.lowerable(), platform, traced.arguments.context)


def lowered_forward(traced: Trace, platform: str) -> LoweredModule:
    """Lower the forward pass alone.

    Its outputs are the function's outputs, then the residuals in the order of `traced.kept`.

    Raises:
      TraceError: JAX cannot lower it for that platform.
    """
    forward, held = _without_constants(traced.forward)
    leaves = [traced.arguments.leaves[i] for i in traced.arguments.dynamic]
    run = jax_compat.as_function(held)
    what = Lowerable(
        lambda given: run(*given), operands(forward, leaves), [None] * len(forward.outvars)
    )
    return _module(what, platform, traced.arguments.context)


def _module(what: Lowerable, platform: str, mesh: Any) -> LoweredModule:
    """Lower a function of operands.

    Args:
      what: the function and its operands.
      platform: `cpu`, `cuda` or `tpu`.
      mesh: the mesh that it was traced in; None: it was traced in none.

    Raises:
      TraceError: JAX cannot lower it for that platform.
    """
    jax = jax_compat.import_jax()
    jitted = jax.jit(
        # XLA calls its parameters `operands[3]` after this name; residuals/matching.py reads it.
        lambda *operands: list(what.run(operands)),
        out_shardings=list(what.outputs),
        donate_argnums=tuple(what.donated),
        keep_unused=True,
    )
    try:
        with warnings.catch_warnings(), jax_compat.without_callers(), jax_compat.in_mesh(mesh):
            # What is given away and cannot be used is said when the step itself is run.
            warnings.filterwarnings("ignore", "Some donated buffers were not usable")
            lowered = jitted.trace(*what.operands).lower(lowering_platforms=(platform,))
        code, devices = jax_compat.bytecode(lowered)
    except Exception as e:
        raise TraceError(
            f"JAX cannot lower this for {platform}: {reason_not_lowered(str(e)) or summary(e)}"
        ) from e
    return LoweredModule(code, platform, devices)


def _without_constants(jaxpr: Jaxpr) -> tuple[Any, Any]:
    """Return a forward jaxpr whose constants are inputs in front, open and closed.

    Which values they have is not known any more where JAX keeps them beside the jaxpr, until 0.10.
    """
    if jaxpr.constvars and not hasattr(jaxpr, "consts"):
        inputs = [*jaxpr.constvars, *jaxpr.invars]
        jaxpr = jaxpr.replace(constvars=[], invars=inputs)
    return jaxpr, jax_compat.as_jit_jaxpr(jaxpr)

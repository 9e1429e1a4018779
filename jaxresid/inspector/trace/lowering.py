"""Lower what was traced to a module for a compiler: no device, no user code, no libtpu.

Shardings, memory kinds and donation are in the module; whose devices they were meant for is
not. Every argument is a parameter of the module, whether or not anything reads it: its caller
holds it either way, and `jax.jit` would leave it out of its own account.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

from jaxresid import jax_compat
from jaxresid.errors import TraceError
from jaxresid.inspector.trace.failures import summary
from jaxresid.inspector.trace.function import Trace
from jaxresid.inspector.trace.runnable import runnable
from jaxresid.inspector.trace.step import StepTrace
from jaxresid.xla.job import LoweredModule


def lowered(traced: Trace | StepTrace, platform: str) -> LoweredModule:
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
    if isinstance(traced, StepTrace):
        return _step(traced, platform)
    leaves = [traced.arguments.leaves[i] for i in traced.arguments.dynamic]
    gradients = [_split(leaf) for leaf in leaves[: len(traced.arguments.having("differentiated"))]]
    outputs = [None] * traced.num_outputs + gradients
    run = runnable(traced, auxiliary=True)
    return _module(run, leaves, platform, traced.arguments.context, outputs)


def lowered_forward(traced: Trace, platform: str) -> LoweredModule:
    """Lower the forward pass alone.

    Its outputs are the function's outputs, then the residuals in the order of `traced.kept`.

    Raises:
      TraceError: JAX cannot lower it for that platform.
    """
    forward, held = _without_constants(traced.forward)
    leaves = [traced.arguments.leaves[i] for i in traced.arguments.dynamic]
    run = jax_compat.as_function(held)
    return _module(
        lambda operands: run(*operands),
        _operands(forward, leaves),
        platform,
        traced.arguments.context,
        [None] * len(forward.outvars),
    )


def _step(traced: StepTrace, platform: str) -> LoweredModule:
    closed = _as_jitted(traced.closed)
    jaxpr, run = jax_compat.open_jaxpr(closed), jax_compat.as_function(closed)
    leaves = [traced.arguments.leaves[i] for i in traced.arguments.dynamic]
    inputs, outputs = _jitted_with(jaxpr)
    operands = [
        leaf if asked is None else _with_sharding(leaf, asked)
        for leaf, asked in zip(_operands(jaxpr, leaves), inputs, strict=True)
    ]
    donated = [i for i, given in enumerate(traced.donated) if given]
    mesh = traced.arguments.context
    return _module(lambda operands: run(*operands), operands, platform, mesh, outputs, donated)


def _module(
    run: Callable[[Sequence[Any]], Sequence[Any]],
    operands: Sequence[Any],
    platform: str,
    mesh: Any,
    outputs: Sequence[Any],
    donated: Sequence[int] = (),
) -> LoweredModule:
    """Lower a function of operands.

    Args:
      run: the function.
      operands: ShapeDtypeStructs or numbers to lower it with.
      platform: `cpu`, `cuda` or `tpu`.
      mesh: the mesh that it was traced in; None: it was traced in none.
      outputs: the sharding of each output; None: the compiler's choice.
      donated: the indices of the operands that it gives away.

    Raises:
      TraceError: JAX cannot lower it for that platform.
    """
    jax = jax_compat.import_jax()
    jitted = jax.jit(
        lambda *operands: list(run(operands)),
        out_shardings=list(outputs),
        donate_argnums=tuple(donated),
        keep_unused=True,
    )
    try:
        with warnings.catch_warnings(), jax_compat.in_mesh(mesh):
            # What is given away and cannot be used is said when the step itself is run.
            warnings.filterwarnings("ignore", "Some donated buffers were not usable")
            lowered = jitted.trace(*operands).lower(lowering_platforms=(platform,))
        code, devices = jax_compat.bytecode(lowered)
    except Exception as e:
        raise TraceError(f"JAX cannot lower this for {platform}: {_reason(e)}") from e
    return LoweredModule(code, platform, devices)


def _as_jitted(closed: Any) -> Any:
    """Return a closed jaxpr that is one jitted call with all results of the call as outputs.

    They come first, in the order of the call; the other outputs follow. `nnx.jit` returns what it
    is given whether or not it changed. Any other closed jaxpr is returned as it is.
    """
    jaxpr = jax_compat.open_jaxpr(closed)
    if len(jaxpr.eqns) != 1 or jax_compat.primitive_name(jaxpr.eqns[0]) != "jit":
        return closed
    (eqn,) = jaxpr.eqns
    known = {v for v in jaxpr.outvars if not jax_compat.is_literal(v)}
    made = [v if v in known else jax_compat.like(v) for v in eqn.outvars]
    rest = [v for v in jaxpr.outvars if jax_compat.is_literal(v) or v not in made]
    outputs = [*made, *rest]
    return jax_compat.with_jaxpr(
        closed,
        jaxpr.replace(
            eqns=[eqn.replace(outvars=made)],
            outvars=outputs,
            # As many as there are outputs: None, which says nothing, JAX 0.7.0 does not take.
            debug_info=jaxpr.debug_info._replace(result_paths=("",) * len(outputs)),
        ),
    )


def _reason(error: Exception) -> str:
    if "cuDNN is not detected" in str(error) or "dot_product_attention_" in str(error):
        return "it calls cuDNN's attention (implementation='cudnn'), which needs an NVIDIA GPU"
    if "is different from the lowering platform" in str(error):
        return (
            "it calls back into Python (jax.debug.print, pure_callback, io_callback), which JAX"
            " lowers only where the device is present; leave those calls out"
        )
    return summary(error)


def _operands(jaxpr: Any, leaves: Sequence[Any]) -> list[Any]:
    """Return the inputs of a jaxpr: its arguments, and in front of them what it closed over."""
    front = jaxpr.invars[: len(jaxpr.invars) - len(leaves)]
    return [*(_struct(var.aval) for var in front), *leaves]


def _struct(aval: Any) -> Any:
    return jax_compat.import_jax().ShapeDtypeStruct(aval.shape, aval.dtype)


def _with_sharding(leaf: Any, sharding: Any) -> Any:
    jax = jax_compat.import_jax()
    weak = bool(getattr(leaf, "weak_type", False))
    return jax.ShapeDtypeStruct(
        jax.numpy.shape(leaf), jax.dtypes.result_type(leaf), sharding=sharding, weak_type=weak
    )


def _without_constants(jaxpr: Any) -> tuple[Any, Any]:
    """Return a forward jaxpr whose constants are inputs in front, open and closed.

    Which values they have is not known any more where JAX keeps them beside the jaxpr, until 0.10.
    """
    if jaxpr.constvars and not hasattr(jaxpr, "consts"):
        inputs = [*jaxpr.constvars, *jaxpr.invars]
        jaxpr = jaxpr.replace(constvars=[], invars=inputs)
    return jaxpr, jax_compat.callee(jaxpr)


def _split(leaf: Any) -> Any | None:
    """Return the sharding of an argument over several devices; None without one.

    It is for a compiler that may choose others: explicit axes are in the types.
    """
    jax = jax_compat.import_jax()
    sharding = getattr(leaf, "sharding", None)
    if not isinstance(sharding, jax.sharding.NamedSharding) or sharding.mesh.size == 1:
        return None
    if not isinstance(sharding.mesh, jax.sharding.Mesh):
        return None
    return sharding


def _jitted_with(jaxpr: Any) -> tuple[list[Any], list[Any]]:
    """Return the shardings of inputs and outputs that a jitted function was given.

    They are by invar and outvar of the jaxpr whose only eqn calls the function; None where it was
    given none.
    """
    jax = jax_compat.import_jax()
    inputs, outputs = [None] * len(jaxpr.invars), [None] * len(jaxpr.outvars)
    if len(jaxpr.eqns) != 1 or jax_compat.primitive_name(jaxpr.eqns[0]) != "jit":
        return inputs, outputs
    (eqn,) = jaxpr.eqns
    inside = _jitted_with(jax_compat.open_jaxpr(eqn.params["jaxpr"]))
    given = (eqn.params["in_shardings"], eqn.params["out_shardings"])

    def asked(which: int, position: int) -> Any | None:
        own = given[which][position]
        return own if isinstance(own, jax.sharding.Sharding) else inside[which][position]

    read = {v: i for i, v in enumerate(eqn.invars) if not jax_compat.is_literal(v)}
    made = {v: i for i, v in enumerate(eqn.outvars)}
    for i, var in enumerate(jaxpr.invars):
        inputs[i] = asked(0, read[var]) if var in read else None
    for i, var in enumerate(jaxpr.outvars):
        if not jax_compat.is_literal(var) and var in made:
            outputs[i] = asked(1, made[var])
    return inputs, outputs

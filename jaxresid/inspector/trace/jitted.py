"""Read from a jaxpr what the function in it was jitted with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxresid import jax_compat
from jaxresid.jax_compat.jaxpr_types import Aval, ClosedJaxpr, Jaxpr


def as_jitted(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Return a closed jaxpr that is one jitted call with all results of the call as outputs.

    They come first, in the order of the call; the other outputs follow. `nnx.jit` returns what it
    is given whether or not it changed. Any other closed jaxpr is returned as it is.
    """
    jaxpr = jax_compat.open_jaxpr(closed)
    if len(jaxpr.eqns) != 1 or jax_compat.primitive_name(jaxpr.eqns[0]) != "jit":
        return closed
    (eqn,) = jaxpr.eqns
    known = {v for v in jaxpr.outvars if not jax_compat.is_literal(v)}
    made = [v if v in known else jax_compat.new_var_like(v) for v in eqn.outvars]
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


def jitted_with(jaxpr: Jaxpr) -> tuple[list[Any], list[Any]]:
    """Return the shardings of inputs and outputs that a jitted function was given.

    They are by invar and outvar of the jaxpr whose only eqn calls the function; None where it was
    given none.
    """
    jax = jax_compat.import_jax()
    inputs, outputs = [None] * len(jaxpr.invars), [None] * len(jaxpr.outvars)
    if len(jaxpr.eqns) != 1 or jax_compat.primitive_name(jaxpr.eqns[0]) != "jit":
        return inputs, outputs
    (eqn,) = jaxpr.eqns
    inside = jitted_with(jax_compat.open_jaxpr(eqn.params["jaxpr"]))
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


def operands(jaxpr: Jaxpr, leaves: Sequence[Any]) -> list[Any]:
    """Return the inputs of a jaxpr: its arguments, and in front of them what it closed over."""
    front = jaxpr.invars[: len(jaxpr.invars) - len(leaves)]
    return [*(_struct(var.aval) for var in front), *leaves]


def _struct(aval: Aval) -> Any:
    return jax_compat.import_jax().ShapeDtypeStruct(aval.shape, aval.dtype)


def with_sharding(leaf: Any, sharding: Any) -> Any:
    """Return an operand with a sharding."""
    jax = jax_compat.import_jax()
    weak = bool(getattr(leaf, "weak_type", False))
    return jax.ShapeDtypeStruct(
        jax.numpy.shape(leaf), jax.dtypes.result_type(leaf), sharding=sharding, weak_type=weak
    )

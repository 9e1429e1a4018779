"""What jaxprs, eqns and variables hold, whatever the version calls it."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, TypeGuard

from jaxresid.jax_compat.jaxpr_types import Aval, ClosedJaxpr, Eqn, Jaxpr, Literal, Primitive, Var

# One name for what has several. remat: `remat2` since 0.4, `checkpoint` as printed by some
# versions, RematTraced with jax_remat3. name: CheckpointName with jax_remat3, where
# PrimalLeftTangentRight hands its first operand on.
_ALIASES = {
    "remat2": "remat",
    "checkpoint": "remat",
    "RematTraced": "remat",
    "CheckpointName": "name",
    "PrimalLeftTangentRight": "pvary",
    "pjit": "jit",
}


def open_jaxpr(jaxpr: ClosedJaxpr) -> Jaxpr:
    """Return the jaxpr with its eqns.

    Until 0.10 `Traced.jaxpr` and eqn params hold a ClosedJaxpr around it; since 0.11 a Jaxpr
    carries its constants itself.
    """
    held: Any = jaxpr
    opened: Jaxpr = held.jaxpr if type(jaxpr).__name__ == "ClosedJaxpr" else held
    return opened


def is_pruned(eqn: Eqn) -> bool:
    """Return whether this JAX prunes an eqn that holds jaxprs when it lowers it.

    It then leaves out what nothing needs of the eqn; of `while` since 0.12.
    """
    return eqn.primitive in _dce_rules()


@functools.cache
def _dce_rules() -> Mapping[Primitive, Any]:
    from jax.interpreters import partial_eval

    rules: Mapping[Primitive, Any] = partial_eval.dce_rules
    return rules


def is_jaxpr(value: object) -> TypeGuard[ClosedJaxpr]:
    """Return whether a value is a jaxpr, open or closed."""
    return (hasattr(value, "eqns") and hasattr(value, "outvars")) or (
        hasattr(value, "jaxpr") and hasattr(value, "consts")
    )


def primitive_name(eqn: Eqn) -> str:
    """Return the primitive's name, the same on every version and with either remat."""
    name: str = eqn.primitive.name
    if name == "call_hi_primitive":  # jax_remat3: the real primitive is a param
        name = type(eqn.params["_prim"]).__name__
    return _ALIASES.get(name, name)


def params(eqn: Eqn) -> Mapping[str, Any]:
    """Return the eqn's params; those of the real primitive under `call_hi_primitive`."""
    if eqn.primitive.name == "call_hi_primitive":
        return bound_params(eqn.params)
    return eqn.params


def bound_params(bound: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the params in what remat or scan is bound with, as `params` does for an eqn."""
    return getattr(bound["_prim"], "params", {}) if "_prim" in bound else bound


def scan_counts(params: Mapping[str, Any]) -> tuple[int, int]:
    """Return how many operands of a scan of these params are constants, and how many its carry.

    Since 0.12 they are the lengths of the trees in `ft_in`.
    """
    if "num_carry" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()
    return len(consts), len(carry)


def has_own_rules(eqn: Eqn) -> bool:
    """Return whether an eqn's primitive is a class of its own with its own rules.

    The primitives of jax_remat3 are left aside. Since 0.12 that of `lax.custom_root` is such a
    class.
    """
    is_own = eqn.primitive.name == "call_hi_primitive"
    return is_own and primitive_name(eqn) not in ("remat", "name")


def as_policies_see(eqn: Eqn) -> tuple[Primitive, Mapping[str, Any]]:
    """Return primitive and params as a checkpoint policy is given them: jax_remat3 wraps names."""
    if eqn.primitive.name == "call_hi_primitive" and primitive_name(eqn) == "name":
        import jax.extend

        return jax.extend.core.primitives.name_p, {"name": params(eqn)["name"]}
    return eqn.primitive, eqn.params


def is_literal(var: Var) -> TypeGuard[Literal]:
    """Return whether an operand is a literal."""
    return hasattr(var, "val")


def literal_text(var: Literal) -> str:
    """Return the value of a Literal, short.

    Since 0.8 it may be a TypedInt or a TypedNdArray.
    """
    import numpy as np

    try:
        array = np.asarray(var.val)
    except Exception:  # a PRNG key has no numpy form
        return str(var.aval)
    return str(array) if array.ndim == 0 else f"{array.dtype}{list(array.shape)}"


def is_dropped(var: Var) -> bool:
    """Return whether a variable is one of a result that nothing reads."""
    return type(var).__name__ == "DropVar"


def traceback(eqn: Eqn) -> Any | None:
    """Return the eqn's `Traceback` (hashable, compared by frames), if JAX recorded one."""
    return eqn.source_info.traceback


def traced_function(jaxpr: Jaxpr) -> str | None:
    """Return `name at file:line` of the Python function that was traced into this jaxpr.

    None where it is not known.
    """
    return getattr(getattr(jaxpr, "debug_info", None), "func_src_info", None)


def memory_space(aval: Aval) -> str:
    """Return `host` for pinned host memory, else `device`.

    Avals know their memory since 0.7.2; before that only the `device_put` that moved the value
    does, see `moved_to`.
    """
    return _space(getattr(aval, "memory_space", None))


@functools.cache
def _space(space: Any) -> str:
    return "host" if getattr(space, "name", str(space)).lower().endswith("host") else "device"


def moved_to(eqn: Eqn, i: int) -> str | None:
    """Return `host` or `device` where a `device_put` moves operand `i` to a memory, else None."""
    device = params(eqn)["devices"][i]
    # TransferToMemoryKind until 0.7.1, MemorySpace since.
    kind = getattr(device, "memory_kind", None) or getattr(device, "name", None)
    if kind is None:
        return None
    return "host" if "host" in str(kind).lower() else "device"


def host_results(eqn: Eqn) -> tuple[int, ...]:
    """Return the results of a jit eqn that its `out_shardings` put in host memory.

    Their avals do not tell.
    """
    asked = params(eqn).get("out_shardings", ())
    return tuple(i for i, s in enumerate(asked) if getattr(s, "memory_kind", None) == "pinned_host")

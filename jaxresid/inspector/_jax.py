"""Every difference between JAX versions, each with the version that needs it.

The only module that may import `jax._src`. At present nothing needs it: jaxprs, eqns, params and
tracebacks are reached from `jax.stages.Traced`, which is public. Primitives are known by name,
never by import, since the module that holds them moves between versions.
"""

from __future__ import annotations

import functools
import importlib.metadata
import re
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxresid.errors import MissingJaxError

MINIMUM = (0, 7)

# Flags that change which values are residuals. Absent ones are left out of the report.
_FLAGS = (
    "jax_enable_x64",
    "jax_remat3",  # 0.10.2
    "jax_use_direct_linearize",  # default on since 0.7.0
    "jax_custom_vjp3",  # 0.9.1
    "jax_custom_jvp3",  # 0.11
    "jax_scan3",  # 0.10.0
    "jax_remat_barrier_no_cotangents",  # 0.11
)

# One name for what has several. remat: `remat2` since 0.4, `checkpoint` as printed by some
# versions, RematTraced with jax_remat3. name: CheckpointName with jax_remat3.
_ALIASES = {
    "remat2": "remat",
    "checkpoint": "remat",
    "RematTraced": "remat",
    "CheckpointName": "name",
    "pjit": "jit",
}

# What calls that stand for removed checkpoints are named: no function of a user's has a space.
_REMOVED = "removed checkpoint"


@functools.cache
def import_jax() -> types.ModuleType:
    """The installed jax, if it is new enough.

    Raises:
      MissingJaxError: saying in one line what to install.
    """
    try:
        import jax
    except ModuleNotFoundError as e:
        if e.name not in ("jax", "jaxlib"):
            raise
        raise MissingJaxError(
            f"{e.name} is not installed here; install it with: pip install 'jaxresid[jax]'"
            " (or install the jax build that your machine needs)"
        ) from None
    version = jax_version()
    numbers = tuple(int(n) for n in re.findall(r"\d+", version)[:2])
    if numbers < MINIMUM:
        raise MissingJaxError(
            f"jax {version} is too old; jaxresid needs jax >= {MINIMUM[0]}.{MINIMUM[1]}:"
            " pip install -U jax"
        )
    return jax  # type: ignore[no-any-return]


def jax_version() -> str:
    import jax

    return getattr(jax, "__version__", None) or importlib.metadata.version("jax")


def flags() -> dict[str, bool]:
    """The values of those flags that change residuals and exist in this version."""
    config = import_jax().config
    values = {name: getattr(config, name, None) for name in _FLAGS}
    return {name: bool(value) for name, value in values.items() if value is not None}


def open_jaxpr(jaxpr: Any) -> Any:
    """The jaxpr with its eqns. Until 0.10 `Traced.jaxpr` and eqn params hold a ClosedJaxpr around
    it; since 0.11 a Jaxpr carries its constants itself."""
    return jaxpr.jaxpr if type(jaxpr).__name__ == "ClosedJaxpr" else jaxpr


def with_jaxpr(closed: Any, jaxpr: Any) -> Any:
    """What holds a jaxpr, with another one of the same inputs and outputs in it; see
    `open_jaxpr`."""
    return jaxpr if open_jaxpr(closed) is closed else closed.replace(jaxpr=jaxpr)


def as_function(closed: Any) -> Callable[..., Sequence[Any]]:
    """A closed jaxpr as a function of its inputs that can be traced; eqns keep their lines."""
    import jax.extend

    return jax.extend.core.jaxpr_as_fun(closed)  # type: ignore[no-any-return]


def as_call(eqn: Any, closed: Any) -> Any:
    """The eqn as a plain jitted call of a closed jaxpr (see `callee`) of its inputs and outputs."""
    template = _jit_eqn(len(eqn.invars), len(eqn.outvars))
    return eqn.replace(primitive=template.primitive, params={**template.params, "jaxpr": closed})


def as_removed(eqn: Any, closed: Any) -> Any:
    """A remat eqn as such a call, which `is_removed` knows."""
    return with_params(as_call(eqn, closed), {"name": _REMOVED})


def is_removed(eqn: Any) -> bool:
    """Whether an eqn stands for a removed checkpoint."""
    return primitive_name(eqn) == "jit" and params(eqn).get("name") == _REMOVED


def like(var: Any) -> Any:
    """A new variable of the same aval."""
    import jax.extend

    return jax.extend.core.Var(var.aval)


def callee(jaxpr: Any) -> Any:
    """An open jaxpr as a jit eqn holds it. JAX differentiates each such object once, so callers
    share it."""
    return with_jaxpr(_jit_eqn(0, 0).params["jaxpr"], jaxpr)


@functools.cache
def _jit_eqn(inputs: int, outputs: int) -> Any:
    """A jit eqn of so many inputs and outputs; the names of its params differ between versions."""
    jax = import_jax()
    traced = jax.make_jaxpr(jax.jit(lambda *args: [1.0] * outputs))(*[1.0] * inputs)
    return open_jaxpr(traced).eqns[0]


def as_remat(body: Any, inputs: Sequence[Any], outputs: Sequence[Any], like: Any) -> Any:
    """A remat eqn of an open jaxpr, without a policy.

    Args:
      inputs, outputs: variables around it, one for each of the body's.
      like: an eqn whose line it is said to stand at.
    """
    template = _remat_eqn()
    held = with_jaxpr(params(template)["jaxpr"], body)
    made = with_params(template, {"jaxpr": held, "policy": None})
    return made.replace(
        invars=list(inputs),
        outvars=list(outputs),
        source_info=like.source_info,
        ctx=like.ctx,
        effects=body.effects,
    )


@functools.cache
def _remat_eqn() -> Any:
    jax = import_jax()
    return open_jaxpr(jax.make_jaxpr(jax.checkpoint(lambda x: x + x))(1.0)).eqns[0]


def as_name(var: Any, name: str) -> Any:
    """The eqn that gives a value a `checkpoint_name`; its input and its output are new
    variables."""
    jax = import_jax()
    from jax.ad_checkpoint import checkpoint_name

    traced = jax.make_jaxpr(lambda x: checkpoint_name(x, name))(var.aval)
    return open_jaxpr(traced).eqns[0]


def with_params(eqn: Any, changed: Mapping[str, Any]) -> Any:
    """The eqn with some of its params (see `params`) changed."""
    if eqn.primitive.name != "call_hi_primitive":
        return eqn.replace(params={**eqn.params, **changed})
    return eqn.replace(params=with_bound_params(eqn.params, changed))


def with_bound_params(bound: Mapping[str, Any], changed: Mapping[str, Any]) -> Mapping[str, Any]:
    """As `with_params`, of what remat or scan is bound with."""
    prim = bound.get("_prim")
    if prim is None:
        return {**bound, **changed}
    return {**bound, "_prim": type(prim)(**{**prim.params, **changed})}


def is_jaxpr(value: Any) -> bool:
    return (hasattr(value, "eqns") and hasattr(value, "outvars")) or (
        hasattr(value, "jaxpr") and hasattr(value, "consts")
    )


def primitive_name(eqn: Any) -> str:
    """The primitive's name, the same on every version and with either remat."""
    name: str = eqn.primitive.name
    if name == "call_hi_primitive":  # jax_remat3: the real primitive is a param
        name = type(eqn.params["_prim"]).__name__
    return _ALIASES.get(name, name)


def params(eqn: Any) -> Mapping[str, Any]:
    """The eqn's params; those of the real primitive under `call_hi_primitive`."""
    if eqn.primitive.name == "call_hi_primitive":
        return bound_params(eqn.params)
    return eqn.params  # type: ignore[no-any-return]


def bound_params(bound: Mapping[str, Any]) -> Mapping[str, Any]:
    """As `params`, of what remat or scan is bound with."""
    return getattr(bound["_prim"], "params", {}) if "_prim" in bound else bound


def as_policies_see(eqn: Any) -> tuple[Any, Mapping[str, Any]]:
    """Primitive and params as a checkpoint policy is given them: jax_remat3 wraps names."""
    if eqn.primitive.name == "call_hi_primitive" and primitive_name(eqn) == "name":
        import jax.extend

        return jax.extend.core.primitives.name_p, {"name": params(eqn)["name"]}
    return eqn.primitive, eqn.params


def is_literal(var: Any) -> bool:
    return hasattr(var, "val")


def literal_text(var: Any) -> str:
    """The value of a Literal, short. Since 0.8 it may be a TypedInt or a TypedNdArray."""
    import numpy as np

    try:
        array = np.asarray(var.val)
    except Exception:  # a PRNG key has no numpy form
        return str(var.aval)
    return str(array) if array.ndim == 0 else f"{array.dtype}{list(array.shape)}"


def is_dropped(var: Any) -> bool:
    return type(var).__name__ == "DropVar"


def traceback(eqn: Any) -> Any | None:
    """The eqn's `Traceback` (hashable, compared by frames), if JAX recorded one."""
    return eqn.source_info.traceback


def name_stack(eqn: Any) -> str:
    return str(eqn.source_info.name_stack)


def traced_function(jaxpr: Any) -> str | None:
    """`name at file:line` of the Python function that was traced into this jaxpr, if known."""
    return getattr(getattr(jaxpr, "debug_info", None), "func_src_info", None)


def memory_space(aval: Any) -> str:
    """`host` for pinned host memory, else `device`.

    Avals know their memory since 0.7.2; before that only the `device_put` that moved the value
    does, see `moved_to`.
    """
    return _space(getattr(aval, "memory_space", None))


@functools.cache
def _space(space: Any) -> str:
    return "host" if getattr(space, "name", str(space)).lower().endswith("host") else "device"


def moved_to(eqn: Any) -> str | None:
    """For a `device_put`: `host` or `device` where it names a memory kind, else None."""
    for device in params(eqn).get("devices", ()):
        kind = getattr(device, "memory_kind", None) or getattr(device, "name", None)
        if kind is not None:  # TransferToMemoryKind until 0.7.1, MemorySpace since
            return "host" if "host" in str(kind).lower() else "device"
    return None

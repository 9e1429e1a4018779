"""Jaxprs and eqns made of others."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxresid.base.errors import calls_user_code
from jaxresid.jax_compat.jaxpr_types import ClosedJaxpr, Eqn, Jaxpr, Literal, Var
from jaxresid.jax_compat.reading import (
    is_jaxpr,
    is_literal,
    open_jaxpr,
    params,
    primitive_name,
    traceback,
)
from jaxresid.jax_compat.version import import_jax

# What calls that stand for removed checkpoints are named: no function of a user's has a space.
_REMOVED = "removed checkpoint"


def with_jaxpr(closed: ClosedJaxpr, jaxpr: Jaxpr) -> ClosedJaxpr:
    """Return what holds a jaxpr, with another one of the same inputs and outputs in it.

    See `open_jaxpr`.
    """
    return jaxpr if open_jaxpr(closed) is closed else closed.replace(jaxpr=jaxpr)


def with_outvars(closed: ClosedJaxpr, outvars: Sequence[Var]) -> ClosedJaxpr:
    """Return a closed jaxpr with other outputs, chosen from those that it has."""
    jaxpr = open_jaxpr(closed)
    known = {v: i for i, v in enumerate(jaxpr.outvars) if not is_literal(v)}
    info = jaxpr.debug_info
    paths = getattr(info, "result_paths", None)
    if paths is not None and len(paths) == len(jaxpr.outvars):
        kept = [paths[known[v]] if not is_literal(v) else "" for v in outvars]
        info = info._replace(result_paths=tuple(kept))
    return with_jaxpr(closed, jaxpr.replace(outvars=list(outvars), debug_info=info))


def implementation(eqn: Eqn) -> ClosedJaxpr | None:
    """Return what the primitive of an eqn does, of a library that implements it in Python.

    None for one that JAX hands to the compiler whole.

    Raises:
      Exception: whatever the library's Python raises while JAX traces it.
    """
    implemented = getattr(eqn.primitive, "impl", None)
    if implemented is None or isinstance(implemented, functools.partial):
        return None
    jax = import_jax()
    inputs = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in eqn.invars]
    traced = _trace_implementation(functools.partial(implemented, **eqn.params), inputs)
    return traced if len(open_jaxpr(traced).outvars) == len(eqn.outvars) else None


@calls_user_code
def _trace_implementation(implemented: Callable[..., Any], inputs: Sequence[Any]) -> ClosedJaxpr:
    made: ClosedJaxpr = import_jax().make_jaxpr(implemented)(*inputs)
    return made


def as_function(closed: ClosedJaxpr) -> Callable[..., Sequence[Any]]:
    """Return a closed jaxpr as a function of its inputs that can be traced.

    Eqns keep their lines.
    """
    import jax.extend

    return jax.extend.core.jaxpr_as_fun(closed)  # type: ignore[no-any-return]


def as_call(eqn: Eqn, closed: ClosedJaxpr) -> Eqn:
    """Return the eqn as a plain jitted call of a closed jaxpr of its inputs and outputs.

    See `as_jit_jaxpr` for the closed jaxpr.
    """
    template = _jit_eqn(len(eqn.invars), len(eqn.outvars))
    return eqn.replace(primitive=template.primitive, params={**template.params, "jaxpr": closed})


def as_removed_checkpoint(eqn: Eqn, closed: ClosedJaxpr) -> Eqn:
    """Return a remat eqn as a call (see `as_call`) that `is_removed_checkpoint` recognises."""
    return with_params(as_call(eqn, closed), {"name": _REMOVED})


def is_removed_checkpoint(eqn: Eqn) -> bool:
    """Return whether an eqn stands for a removed checkpoint."""
    return primitive_name(eqn) == "jit" and params(eqn).get("name") == _REMOVED


def with_constants_as_inputs(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Return a closed jaxpr without constants, which come in front of its inputs."""
    jaxpr = open_jaxpr(closed)
    if not closed.consts:
        return closed
    invars = [*jaxpr.constvars, *jaxpr.invars]
    info = jaxpr.debug_info._replace(arg_names=("",) * len(invars))
    changed = {"constvars": [], "invars": invars, "debug_info": info}
    if jaxpr is closed:
        made: ClosedJaxpr = jaxpr.replace(consts=[], **changed)
        return made
    new: Callable[..., ClosedJaxpr] = type(closed)
    return new(jaxpr.replace(**changed), [])


def with_inputs_as_constants(jaxpr: Jaxpr, closed: ClosedJaxpr) -> ClosedJaxpr:
    """Return an open jaxpr closed over the constants of a closed one, which are its first inputs.

    See `with_constants_as_inputs`.
    """
    count, info = len(closed.consts), open_jaxpr(closed).debug_info
    invars = list(jaxpr.invars)
    changed = {"constvars": invars[:count], "invars": invars[count:], "debug_info": info}
    if open_jaxpr(closed) is closed:
        made: ClosedJaxpr = jaxpr.replace(consts=list(closed.consts), **changed)
        return made
    new: Callable[..., ClosedJaxpr] = type(closed)
    return new(jaxpr.replace(**changed), closed.consts)


def bind_call(closed: ClosedJaxpr, name: str, operands: Sequence[Any]) -> list[Any]:
    """Call a closed jaxpr without constants, as one jit eqn of a name where JAX traces.

    See `as_jit_jaxpr` for the closed jaxpr.
    """
    jaxpr = open_jaxpr(closed)
    template = _jit_eqn(len(jaxpr.invars), len(jaxpr.outvars))
    primitive: Any = template.primitive
    made = primitive.bind(*operands, **{**template.params, "jaxpr": closed, "name": name})
    return list(made)


def with_traceback(eqn: Eqn, like: Eqn) -> Eqn:
    """Return the eqn with the traceback of another."""
    source = eqn.source_info.replace(traceback=traceback(like))
    return eqn.replace(source_info=source)


def new_var_like(var: Var, dtype: Any = None) -> Var:
    """Return a new variable of the same aval, or of another dtype."""
    import jax.extend

    aval: Any = var.aval
    if dtype is not None:
        aval = aval.update(dtype=dtype, weak_type=False)
    made: Var = jax.extend.core.Var(aval)
    return made


def as_jit_jaxpr(jaxpr: Jaxpr) -> ClosedJaxpr:
    """Return an open jaxpr as a jit eqn holds it.

    JAX differentiates each such object once, so callers share it.
    """
    return with_jaxpr(_jit_eqn(0, 0).params["jaxpr"], jaxpr)


def part_of(
    jaxpr: Jaxpr, invars: Sequence[Var], eqns: Sequence[Eqn], outvars: Sequence[Var]
) -> ClosedJaxpr:
    """Return some eqns of an open jaxpr without constants, with what they read and what is wanted.

    It can be run, see `as_function`.
    """
    info = jaxpr.debug_info
    for names, count in (("arg_names", len(invars)), ("result_paths", len(outvars))):
        if hasattr(info, names):
            info = info._replace(**{names: ("",) * count})
    made = jaxpr.replace(invars=list(invars), outvars=list(outvars), debug_info=info)
    return as_jit_jaxpr(with_other_eqns(made, eqns))


@functools.cache
def _jit_eqn(inputs: int, outputs: int) -> Eqn:
    """Return a jit eqn of so many inputs and outputs.

    The names of its params differ between versions.
    """
    jax = import_jax()
    traced = jax.make_jaxpr(jax.jit(lambda *args: [1.0] * outputs))(*[1.0] * inputs)
    return open_jaxpr(traced).eqns[0]


def as_remat(body: Jaxpr, inputs: Sequence[Var], outputs: Sequence[Var], like: Eqn) -> Eqn:
    """Return a remat eqn of an open jaxpr, without a policy.

    Args:
      body: the open jaxpr.
      inputs: variables around it, one for each of the body's invars.
      outputs: variables around it, one for each of the body's outvars.
      like: an eqn whose source line it is given.
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
def _remat_eqn() -> Eqn:
    jax = import_jax()
    return open_jaxpr(jax.make_jaxpr(jax.checkpoint(lambda x: x + x))(1.0)).eqns[0]


def as_name(var: Var, name: str) -> Eqn:
    """Return the eqn that gives a value a `checkpoint_name`.

    Its input and its output are new variables.
    """
    jax = import_jax()
    from jax.ad_checkpoint import checkpoint_name

    traced = jax.make_jaxpr(lambda x: checkpoint_name(x, name))(var.aval)
    return open_jaxpr(traced).eqns[0]


def as_constraint(var: Var, mesh: Any, split: Sequence[tuple[str, ...]]) -> Eqn:
    """Return the eqn that splits a value over a mesh; its input and output are new variables."""
    jax = import_jax()
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*split))
    traced = jax.make_jaxpr(lambda x: jax.lax.with_sharding_constraint(x, sharding))(var.aval)
    return open_jaxpr(traced).eqns[0]


def with_params(eqn: Eqn, changed: Mapping[str, Any]) -> Eqn:
    """Return the eqn with some of its params (see `params`) changed."""
    if eqn.primitive.name != "call_hi_primitive":
        return eqn.replace(params={**eqn.params, **changed})
    return eqn.replace(params=with_bound_params(eqn.params, changed))


def with_label(eqn: Eqn, label: str) -> Eqn:
    """Return the eqn with a label in front of its name stack, which what JAX makes of it keeps."""
    source = eqn.source_info
    stack = type(source.name_stack)().extend(label) + source.name_stack
    return eqn.replace(source_info=source.replace(name_stack=stack))


def with_eqns(jaxpr: Jaxpr, invars: Sequence[Var], eqns: Sequence[Eqn]) -> Jaxpr:
    """Return an open jaxpr with other eqns, and with some of its inputs."""
    info = jaxpr.debug_info
    names = getattr(info, "arg_names", None)
    if names is not None and len(names) == len(jaxpr.invars):
        known = dict(zip(jaxpr.invars, names, strict=True))
        info = info._replace(arg_names=tuple(known[v] for v in invars))
    return jaxpr.replace(invars=list(invars), eqns=list(eqns), debug_info=info)


def with_other_eqns(jaxpr: Jaxpr, eqns: Sequence[Eqn]) -> Jaxpr:
    """Return an open jaxpr with other eqns of the same inputs.

    JAX can run it with those of jax_remat3 as well, which it has to be told of.
    """
    if getattr(jaxpr, "is_high", None) is False and any(map(_is_high, eqns)):
        return jaxpr.replace(eqns=list(eqns), is_high=True)
    return jaxpr.replace(eqns=list(eqns))


def _is_high(eqn: Eqn) -> bool:
    inner = (open_jaxpr(value) for value in eqn.params.values() if is_jaxpr(value))
    return eqn.primitive.name == "call_hi_primitive" or any(
        getattr(each, "is_high", False) for each in inner
    )


def with_bound_params(bound: Mapping[str, Any], changed: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what remat or scan is bound with, with some of its params changed.

    See `with_params`.
    """
    prim = bound.get("_prim")
    if prim is None:
        return {**bound, **changed}
    params = {**prim.params, **changed}
    if "prevent_cse" not in inspect.signature(type(prim)).parameters:  # jax_remat3 of 0.10
        params.pop("prevent_cse", None)
    return {**bound, "_prim": type(prim)(**params)}


def converted(literal: Any, var: Var) -> Literal:
    """Return a literal converted to the type that a variable has."""
    import numpy as np

    new: Callable[..., Literal] = type(literal)
    return new(np.asarray(literal.val).astype(var.aval.dtype)[()], var.aval)

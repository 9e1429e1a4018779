"""Rewrite a jaxpr so that scores are made, and read, for some of the tokens at a time.

A scan runs over parts of the tokens; its body is a checkpoint, so that the backward pass makes the
scores of a part again and no others are in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jaxresid import jax_compat
from jaxresid.inspector.jaxpr.rewrite import with_inner
from jaxresid.inspector.variants.rewrites.logits import Logits
from jaxresid.inspector.variants.rewrites.token_axes import Axes, params_for, shape_of
from jaxresid.jax_compat.jaxpr_types import ClosedJaxpr, Eqn, Jaxpr, Var


def with_chunks(jaxpr: Jaxpr, scores: Sequence[Logits], chunks: int) -> Jaxpr:
    """Return the jaxpr with scores that were found in it made for a part of the tokens at a time.

    Args:
      jaxpr: the open jaxpr.
      scores: the scores; all of one holder, with the same calls inlined.
      chunks: how many parts there are; it divides the `count` of each.

    Raises:
      Exception: whatever JAX raises where that cannot be traced.
    """
    flat = scores[0].jaxpr
    for logits in scores:
        flat = _with(flat, logits, _in_chunks(logits, chunks))
    return _replaced(jaxpr, scores[0].holder, flat)


def _replaced(jaxpr: Jaxpr, old: Jaxpr, new: Jaxpr) -> Jaxpr:
    if jaxpr is old:
        return new
    eqns = [with_inner(eqn, lambda inner: _replaced(inner, old, new)) for eqn in jaxpr.eqns]
    if all(a is b for a, b in zip(eqns, jaxpr.eqns, strict=True)):
        return jaxpr
    return jax_compat.with_other_eqns(jaxpr, eqns)


def _with(flat: Jaxpr, logits: Logits, closed: ClosedJaxpr) -> Jaxpr:
    """Return a jaxpr that holds scores with one call in place of what is made of them."""
    own = {id(eqn) for eqn in logits.eqns}
    call = jax_compat.as_call(
        logits.matmul.replace(invars=[*logits.inputs, *logits.whole], outvars=list(logits.outputs)),
        closed,
    )
    behind, operands = set(logits.matmul.outvars), {*logits.inputs, *logits.whole}
    # It stands as early as it can, or layers that are alike would no longer be.
    last = max(
        i for i, eqn in enumerate(flat.eqns) if eqn is logits.matmul or operands & {*eqn.outvars}
    )
    first, then = list[Eqn](), list[Eqn]()
    for i, eqn in enumerate(flat.eqns):
        is_behind = any(v in behind for v in eqn.invars if not jax_compat.is_literal(v))
        if is_behind:
            behind |= set(eqn.outvars)
        if eqn is not logits.matmul and not (is_behind and id(eqn) in own):
            (then if is_behind or i > last else first).append(eqn)
    # What stood for no scores, but had their axis, may be read by nothing else.
    needed = {v for v in flat.outvars if not jax_compat.is_literal(v)}
    left = list[Eqn]()
    for eqn in reversed([*first, call, *then]):
        if id(eqn) not in own or any(v in needed for v in eqn.outvars):
            needed |= {v for v in eqn.invars if not jax_compat.is_literal(v)}
            left.append(eqn)
    return jax_compat.with_other_eqns(flat, left[::-1])


def _in_chunks(logits: Logits, chunks: int) -> ClosedJaxpr:
    jax = jax_compat.import_jax()
    jnp, part = jax.numpy, logits.count // chunks
    input_axes = [logits.axes[v] for v in logits.inputs]
    output_axes = [logits.axes[v] for v in logits.outputs]
    variables = [*logits.inputs, *logits.whole]

    def apart(value: Any, axes: Axes) -> Any:
        dim = axes.tokens
        assert dim is not None
        shape = (*value.shape[:dim], chunks, part * axes.inner, *value.shape[dim + 1 :])
        return jnp.moveaxis(value.reshape(shape), dim, 0)

    def together(stack: Any, axes: Axes) -> Any:
        dim = axes.tokens
        if dim is None:
            return jnp.sum(stack, axis=0)
        moved = jnp.moveaxis(stack, 0, dim)
        return moved.reshape(*moved.shape[:dim], -1, *moved.shape[dim + 2 :])

    def run(*values: Any) -> list[Any]:
        inputs, whole = values[: len(input_axes)], values[len(input_axes) :]

        def body(_: None, parts: Sequence[Any]) -> tuple[None, list[Any]]:
            env = dict(zip(variables, [*parts, *whole], strict=True))
            for eqn in logits.eqns:
                _apply(eqn, env, logits, part)
            return None, [env[v] for v in logits.outputs]

        parts = [apart(v, axes) for v, axes in zip(inputs, input_axes, strict=True)]
        _, stacks = jax.lax.scan(jax.checkpoint(body, prevent_cse=False), None, parts)
        return [together(s, axes) for s, axes in zip(stacks, output_axes, strict=True)]

    avals = [jax.ShapeDtypeStruct(shape_of(v), v.aval.dtype) for v in variables]
    traced: ClosedJaxpr = jax.make_jaxpr(run)(*avals)
    return traced


def _apply(eqn: Eqn, env: dict[Var, Any], logits: Logits, part: int) -> None:
    (result,) = eqn.outvars
    axes = logits.axes.get(result)
    params: Mapping[str, Any] = eqn.params
    if axes is not None:
        params = params_for(eqn, axes, logits.count, part)
    operands = [v.val if jax_compat.is_literal(v) else env[v] for v in eqn.invars]
    primitive: Any = eqn.primitive
    env[result] = primitive.bind(*operands, **params)

"""A function's value and gradients over the microbatches of a batch, as a person would write it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxresid import jax_compat
from jaxresid.base.errors import JaxresidError
from jaxresid.inspector.call.arguments import Arguments
from jaxresid.inspector.trace.function import Trace
from jaxresid.inspector.trace.step import StepTrace
from jaxresid.inspector.trace.traced import Traced


def accumulated(loss: Trace, one: Traced, call: Arguments, batch: Sequence[int]) -> StepTrace:
    """Return the trace of a scan over microbatches that adds up values and gradients.

    It returns values and then gradients, as many as arguments are differentiated. Gradients of the
    batch itself are stacked. On a mesh each microbatch has one of so many items in a row, so that
    all devices that the batch is split over work at it.

    Args:
      loss: The function, traced with any batch.
      one: The same with one microbatch, perhaps with other checkpoints.
      call: The arguments, with the whole batch.
      batch: The numbers of the leaves that hold the batch; the leading dim is divided.

    Raises:
      JaxresidError: The function returns something other than scalars.
      Exception: Whatever JAX raises.
    """
    jax = jax_compat.import_jax()
    jnp = jax.numpy
    run, leaves = one.runnable(), [call.leaves[i] for i in call.dynamic]
    count = len(call.having("differentiated"))
    divided = [n for n, i in enumerate(call.dynamic) if i in batch]
    parts = [one.arguments.leaves[i] for i in one.arguments.dynamic]
    values = jax.tree.leaves(loss.primal().out_info[0])
    if any(value.shape for value in values):
        raise JaxresidError("only a scalar can be added up over microbatches")
    stacked = [len(values) + n for n in divided if n < count]
    made = [*values, *parts[:count]]
    added = [k for k in range(len(made)) if k not in stacked]

    is_split = call.mesh is not None
    # Sums of gradients are split as the arguments are.
    pieces = [None] * len(values) + [getattr(leaf, "sharding", None) for leaf in leaves[:count]]

    def in_parts(whole: Any, shape: tuple[int, ...]) -> Any:
        if not is_split:
            return jnp.reshape(whole, (-1, *shape))
        return jnp.swapaxes(jnp.reshape(whole, (shape[0], -1, *shape[1:])), 0, 1)

    def as_given(total: Any, k: int) -> Any:
        if pieces[k] is None or jax_compat.is_explicit(call.mesh):
            return total
        return jax.lax.with_sharding_constraint(total, pieces[k])

    def over_microbatches(given: Sequence[Any]) -> list[Any]:
        def body(totals: list[Any], each: list[Any]) -> tuple[list[Any], list[Any]]:
            inside = list(given)
            for n, part in zip(divided, each, strict=True):
                inside[n] = part
            results = run(inside)
            sums = [as_given(t + results[k], k) for t, k in zip(totals, added, strict=True)]
            return sums, [results[k] for k in stacked]

        zeros = [jnp.zeros(made[k].shape, made[k].dtype, device=pieces[k]) for k in added]
        split = [in_parts(given[n], parts[n].shape) for n in divided]
        totals, stacks = jax.lax.scan(body, zeros, split)
        joined = [
            jnp.reshape(
                jnp.swapaxes(stack, 0, 1) if is_split else stack, leaves[k - len(values)].shape
            )
            for stack, k in zip(stacks, stacked, strict=True)
        ]
        found = {**dict(zip(added, totals, strict=True)), **dict(zip(stacked, joined, strict=True))}
        return [found[k] for k in sorted(found)]

    with jax_compat.in_mesh(call.context):
        traced = jax.jit(over_microbatches).trace(leaves)
    return StepTrace(
        arguments=call,
        frames=one.frames,
        closed=traced.jaxpr,
        donated=(False,) * len(leaves),
        outputs=tuple(f"[{k}]" for k in range(len(made))),
        num_returned=len(made),
    )

"""A function's value and gradients over the microbatches of a batch, as a person would write it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxresid import jax_compat
from jaxresid.errors import JaxresidError
from jaxresid.inspector.call.arguments import Arguments
from jaxresid.inspector.trace.function import Trace
from jaxresid.inspector.trace.step import StepTrace


def accumulated(one: Trace, call: Arguments, batch: Sequence[int]) -> StepTrace:
    """Return the trace of a scan over microbatches that adds up values and gradients.

    Gradients of the batch itself are stacked.

    Args:
      one: The function, traced with one microbatch.
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
    values = jax.tree.leaves(one.primal().out_info[0])
    if any(value.shape for value in values):
        raise JaxresidError("only a scalar can be added up over microbatches")
    stacked = [len(values) + n for n in divided if n < count]
    made = [*values, *parts[:count]]
    added = [k for k in range(len(made)) if k not in stacked]

    def over_microbatches(given: Sequence[Any]) -> list[Any]:
        def body(totals: list[Any], each: list[Any]) -> tuple[list[Any], list[Any]]:
            inside = list(given)
            for n, part in zip(divided, each, strict=True):
                inside[n] = part
            results = run(inside)
            sums = [t + results[k] for t, k in zip(totals, added, strict=True)]
            return sums, [results[k] for k in stacked]

        zeros = [jnp.zeros(made[k].shape, made[k].dtype) for k in added]
        split = [jnp.reshape(given[n], (-1, *parts[n].shape)) for n in divided]
        totals, stacks = jax.lax.scan(body, zeros, split)
        joined = [
            jnp.reshape(stack, leaves[k - len(values)].shape)
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

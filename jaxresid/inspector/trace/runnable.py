"""Turn a trace into a function that can be run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jaxresid import jax_compat
from jaxresid.inspector.trace.function import Trace, float0, is_inexact
from jaxresid.inspector.trace.step import StepTrace


def runnable(
    traced: Trace | StepTrace, *, auxiliary: bool = False
) -> Callable[[Sequence[Any]], list[Any]]:
    """Return what a trace computes, as a function of its dynamic leaves in order.

    For a function, that is its outputs and then the gradients for cotangents of one; for a training
    step, its outputs. No user code runs again.

    Args:
      traced: the function or the training step.
      auxiliary: whether a function's auxiliary outputs are among them, after the others.
    """
    jax = jax_compat.import_jax()
    if isinstance(traced, StepTrace):
        step = jax_compat.as_function(traced.closed)
        return lambda leaves: list(step(*leaves))
    primal = traced.primal()
    evaluate, treedef = jax_compat.as_function(primal.jaxpr), jax.tree.structure(primal.out_info)
    count = len(traced.arguments.having("differentiated"))

    def run(leaves: Sequence[Any]) -> list[Any]:
        def call(chosen: Sequence[Any]) -> Any:
            return jax.tree.unflatten(treedef, evaluate(*chosen, *leaves[count:]))

        y, vjp, aux = jax.vjp(call, list(leaves[:count]), has_aux=True)
        ones = jax.tree.map(lambda a: jax.numpy.ones_like(a) if is_inexact(a) else float0(a), y)
        (gradients,) = vjp(ones)
        more = jax.tree.leaves(aux) if auxiliary else []
        return [*jax.tree.leaves(y), *more, *gradients]

    return run

"""The rule `moments-without-gradient` (JXR848)."""

from __future__ import annotations

from jaxresid.advice.check.rule import TracedRule
from jaxresid.linter.rule import Example

_STEP = """
    import functools

    import jax
    import jax.numpy as jnp


    def error(params, x):
        return jnp.sum((x @ {frozen} @ params["head"]) ** 2)


    @functools.partial(jax.jit, donate_argnums=0)
    def loss(state, x):{mark}
        gradients = jax.grad(error)(state["params"], x)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, state["momentum"], gradients)
        params = jax.tree.map(lambda p, m: p - 0.1 * m, state["params"], momentum)
        return {{"params": params, "momentum": momentum}}


    def loss_inputs():
        body = jax.ShapeDtypeStruct((2048, 2048), jnp.float32)
        head = jax.ShapeDtypeStruct((2048, 16), jnp.float32)
        params = {{"body": body, "head": head}}
        x = jax.ShapeDtypeStruct((64, 2048), jnp.float32)
        return {{"params": params, "momentum": params}}, x
"""


class MomentsWithoutGradient(TracedRule):
    """An optimizer keeps state for weights whose gradient is zero whatever the inputs are.

    ## What it does
    Finds weights that come back made of themselves and of what an optimizer keeps for them alone,
    in a step that takes gradients of others: those behind a `jax.lax.stop_gradient`, and those that
    no loss reads. The effect is the estimated peak of the same program without that state, in which
    these weights stay as they are; what takes less than 3 % off the peak is not reported. Silent
    for weights whose gradient depends on the batch, such as rows of an embedding or experts that
    get few tokens, and where a norm of all updates reads that state.

    ## Why is this bad?
    Adam keeps two arrays for each weight, which stay zero here: as many bytes again, or twice as
    many, for nothing.

    ## Use instead
    Give the optimizer the trained weights alone, and pass the frozen ones as an argument of their
    own that is not differentiated. Or `optax.partition({"train": optimizer, "freeze":
    optax.set_to_zero()}, labels)`, which older versions call `optax.multi_transform`; in Flax NNX
    `nnx.Optimizer(model, tx, wrt=...)` with the filter that `nnx.grad` takes.

    ## When is this fine?
    Where the weights are frozen for some steps only, and their state is to be there afterwards.
    Weight decay that an optimizer applies to them as well ends with their state.
    """

    bad = (
        Example(
            _STEP.format(frozen='jax.lax.stop_gradient(params["body"])', mark="  # !"),
        ),
    )
    good = (Example(_STEP.format(frozen='params["body"]', mark="")),)

"""The rule `missing-donation` (JXR831)."""

from __future__ import annotations

from jaxresid.advice.check.rule import TracedRule
from jaxresid.linter.rule import Example

_STEP = """
    import functools

    import jax
    import jax.numpy as jnp


    def error(w, x):
        return jnp.sum(jnp.sin(x @ w) ** 2)


    {jit}
    def loss(state, x):{mark}
        gradient = jax.grad(error)(state["w"], x)
        momentum = 0.9 * state["momentum"] + gradient
        {end}


    def loss_inputs():
        square = jax.ShapeDtypeStruct((2048, 2048), jnp.float32)
        x = jax.ShapeDtypeStruct((512, 2048), jnp.float32)
        return {{"w": square, "momentum": square}}, x
"""
_UPDATED = 'return {"w": state["w"] - 0.1 * momentum, "momentum": momentum}'


class MissingDonation(TracedRule):
    """A program returns an argument updated without donating it, so both are in memory.

    ## What it does
    Finds programs that return an argument updated, all of its arrays at their places, and do not
    donate it: parameters and the optimizer's state of a training step, the cache of a decoder, the
    state of a simulation. The effect is the peak of
    the same program with the argument donated, by the estimate or, with `--compile`, by XLA; what
    takes less than 3 % off the peak is not reported. Silent for losses, for
    arguments that do not come back whole, and where the peak is elsewhere.

    ## Why is this bad?
    Without donation a compiler may not write the new values over the old ones: old and new state
    are in memory at the same time, even if the caller drops the old one right after.

    ## Use instead
    `jax.jit(step, donate_argnums=(0,))`, or `donate_argnames`; `nnx.jit` takes the same, and
    `eqx.filter_jit` takes `donate="all"` or `donate="all-except-first"`. A donated array cannot be
    read after the call.

    ## When is this fine?
    Where the caller reads the old state after the step, to compare it, or to go back to it where
    the loss is not finite; a trace does not show that. And where the step that is jitted elsewhere
    donates.
    """

    bad = (Example(_STEP.format(jit="@jax.jit", mark="  # !", end=_UPDATED)),)
    good = (
        Example(
            _STEP.format(
                jit="@functools.partial(jax.jit, donate_argnums=0)", mark="", end=_UPDATED
            ),
        ),
        # The gradient is returned, and the state stays as it is.
        Example(_STEP.format(jit="@jax.jit", mark="", end="return gradient, momentum.mean()")),
    )

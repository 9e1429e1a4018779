"""The rule `unusable-donation` (JXR832)."""

from __future__ import annotations

from jaxresid.advice.check.rule import TracedRule
from jaxresid.linter.rule import Example

_STEP = """
    import functools

    import jax
    import jax.numpy as jnp


    def error(w, x):
        return jnp.sum(jnp.sin(x @ w) ** 2)


    @functools.partial(jax.jit, donate_argnums=0)
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
_NARROWED = """new = {"w": state["w"] - 0.1 * momentum, "momentum": momentum}
        return jax.tree.map(lambda v: v.astype(jnp.bfloat16), new)"""


class UnusableDonation(TracedRule):
    """A program donates arrays that no output can take over.

    ## What it does
    Finds arrays that are donated although no output is left of their shape and dtype, or of
    their bytes, and names the output at the same place of what is returned, or that is made of the
    array and nearly like it, and says how it differs: a cache that comes back in another dtype, or
    longer by one token.
    JAX warns of some, "Some donated buffers were not usable", and not where an output has as many
    elements of another dtype. Silent where they are less than 3 % of the
    peak, of what the program does not read, on a mesh, where XLA matches, and for batches that
    `eqx.filter_jit(donate="all")` gives away.

    ## Why is this bad?
    The old values are lost to the caller, and still there beside the new ones while the program
    runs. What comes back in another dtype or shape also compiles the next call anew.

    ## Use instead
    Cast new values to the dtype of the old ones (`new.astype(old.dtype)`), as
    `optax.apply_updates` does, return them in their shape, such as a cache of a fixed length that
    `jax.lax.dynamic_update_slice` writes to, and do not donate what does not come back.

    ## When is this fine?
    Where the array is to be freed early, or a batch is donated with all else.
    """

    bad = (Example(_STEP.format(mark="  # !", end=_NARROWED)),)
    good = (Example(_STEP.format(mark="", end=_UPDATED)),)

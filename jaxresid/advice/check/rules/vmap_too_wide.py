"""The rule `vmap-too-wide` (JXR845)."""

from __future__ import annotations

from jaxresid.advice.check.rule import TracedRule
from jaxresid.linter.rule import Example

_MAPPED = """
    import jax
    import jax.numpy as jnp


    def spectrum(x):
        pairs = jnp.sin(x[:, None] * x)
        return jnp.linalg.norm(jnp.cumsum(pairs @ pairs, 0) @ pairs, axis=1)


    def loss(xs):
        return {call}


    def loss_inputs():
        return (jax.ShapeDtypeStruct((1024, 256), jnp.float32),)
"""
_TRAINED = """
    import jax
    import jax.numpy as jnp


    def error(w, x):
        return jnp.sum(jnp.tanh(jnp.tanh(x @ w) @ w))


    def loss(w, xs):
        return jnp.mean(jax.vmap(error, (None, 0))(w, xs))


    def loss_inputs():
        w = jax.ShapeDtypeStruct((256, 256), jnp.float32)
        return w, jax.ShapeDtypeStruct((64, 256, 256), jnp.float32)
"""


class VmapTooWide(TracedRule):
    """A vmap runs so many items at once that what it makes is the peak.

    ## What it does
    Looks at what `jax.vmap` makes of what is live at the peak, also that of `jax.jacrev`,
    `jax.jacfwd` and `jax.hessian`, which map over a basis, and of per-example gradients. It traces
    the program again with the calls of that line in parts, as `jax.lax.map` with a `batch_size`
    runs them, and says what the peak and the FLOPs are then. Where the program does not surely fit,
    the parts are the biggest with which it does; else the biggest that gain nearly as much as the
    smallest. It is shown where that takes at least 3 % off the peak of a program that does not
    surely fit, and at least 30 % off that of another. Silent where the vmap has an `axis_name`, for
    what a TPU may have in its vector memory (128 MiB), on a mesh, and where parts do not lower the
    peak, as those of a vmap that a gradient is taken through do not: what they keep for the
    backward pass is stacked.

    With `--compile` the parts are compiled too, and XLA refutes them where its peak falls by less
    than 3 %, or where they were said to fit and do not.

    ## Why is this bad?
    `jax.vmap` makes each intermediate value of all items before the next one.

    ## Use instead
    `jax.lax.map(f, xs, batch_size=...)`, which maps some items at a time, one part after the other.
    What is not mapped, such as parameters, `f` closes over. For a Jacobian, map the function that
    `jax.vjp` or `jax.linearize` returns over the rows of the basis.

    ## When is this fine?
    Where the memory is there: parts run one after the other, and small ones leave a device idle.
    The figures say what the parts take, not how long.
    """

    bad = (Example(_MAPPED.format(call="jax.vmap(spectrum)(xs)  # !")),)
    good = (
        Example(_MAPPED.format(call="jax.lax.map(spectrum, xs, batch_size=64)")),
        # What is kept for the backward pass is the same in parts.
        Example(_TRAINED),
    )

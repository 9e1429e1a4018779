"""The rule `derived-residual` (JXR834)."""

from __future__ import annotations

from jaxresid.advice.check.rule import TracedRule
from jaxresid.linter.rule import Example

_CASTS = """
    import jax
    import jax.numpy as jnp


    def product(x, w):
        return x @ w.astype(jnp.bfloat16){mark}


    def loss(weights, x):
        def layer(x, w):
            return jnp.tanh({call}(x, w)), None

        x, _ = jax.lax.scan({body}, x, weights)
        return jnp.sum(x.astype(jnp.float32))


    def loss_inputs():
        weights = jax.ShapeDtypeStruct((16, 512, 512), jnp.float32)
        return weights, jax.ShapeDtypeStruct((1024, 512), jnp.bfloat16)
"""
_DROPOUT = """
    import jax
    import jax.numpy as jnp


    def dropout(key, x):
        return jnp.where(jax.random.bernoulli(key, 0.9, x.shape), x / 0.9, 0){mark}


    def loss(weights, x, key):
        def layer(x, slices):
            w, key = slices
            return {call}(key, x @ w), None

        x, _ = jax.lax.scan(layer, x, (weights, jax.random.split(key, 16)))
        return jnp.sum(x)


    def loss_inputs():
        weights = jax.ShapeDtypeStruct((16, 256, 256), jnp.float32)
        x = jax.ShapeDtypeStruct((4096, 256), jnp.float32)
        return weights, x, jax.eval_shape(jax.random.key, 0)
"""


class DerivedResidual(TracedRule):
    """A loop keeps for each trip what the backward pass could make again at hardly any cost.

    ## What it does
    Finds residuals that a scan stacks and that a few operations by elements make of arguments
    (casts of parameters), of random keys (dropout bits) or of integers (masks, rotary tables,
    one-hots), and of nothing else. It puts these operations into a checkpoint with what reads their
    result, differentiates again, and says what the peak, the kept bytes and the FLOPs are then. It
    is shown where that takes at least 3 % off the peak. Silent outside loops, where a compiler
    decides what it computes again, for what a checkpoint does not keep, and on a mesh.

    ## Why is this bad?
    A compiler cannot compute again in the backward loop what the forward loop has stacked, so it is
    in memory once for each trip: where a loop casts float32 parameters to bfloat16, all these
    copies lie beside them until the backward pass is done.

    ## Use instead
    A small `jax.checkpoint` around the operations and what reads them, `prevent_cse=False` in a
    loop: it keeps the arguments, keys or integers, which are in memory anyway. Around a matmul it
    recomputes no matmul, as its derivative reads its factors alone. With Flax, `nn.remat` of the
    `Dense` or `Dropout` layer does it. What is the same in each trip can be made before the loop.

    ## When is this fine?
    Where drawing random bits again takes longer than the memory is worth.
    """

    code = "JXR834"
    name = "derived-residual"
    severity = "info"
    bad = (
        Example(_CASTS.format(mark="  # !", call="product", body="layer")),
        Example(_DROPOUT.format(mark="  # !", call="dropout")),
    )
    good = (
        Example(
            _CASTS.format(mark="", call="jax.checkpoint(product, prevent_cse=False)", body="layer")
        ),
        Example(_DROPOUT.format(mark="", call="jax.checkpoint(dropout, prevent_cse=False)")),
        Example(_CASTS.format(mark="", call="product", body="jax.checkpoint(layer)")),
    )

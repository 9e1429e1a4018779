"""The rule `widened-residual` (JXR806)."""

from __future__ import annotations

from jaxresid.advice.check.rule import TracedRule
from jaxresid.linter.rule import Example

_SHIFTED = """
    import jax
    import jax.numpy as jnp


    def loss(weights, bias, x):
        def layer(x, w):
            y = x @ w
            y = {shifted}
            return (y * y).astype(x.dtype), None

        x, _ = jax.lax.scan({body}, x, weights)
        return jnp.sum(x)


    def loss_inputs():
        x = jax.ShapeDtypeStruct((4096, 256), jnp.{dtype})
        weights = jax.ShapeDtypeStruct((8, 256, 256), jnp.{dtype})
        return weights, jax.ShapeDtypeStruct((256,), jnp.float32), x
"""
_NORM = """
    import jax
    import jax.numpy as jnp


    def norm(x):
        return x / jnp.sqrt({variance} + 1){mark}


    def loss(weights, x):
        def layer(x, w):
            return jnp.tanh(norm(x) @ w).astype(jnp.bfloat16), None

        x, _ = jax.lax.scan(layer, x, weights)
        return jnp.sum(x)


    def loss_inputs():
        weights = jax.ShapeDtypeStruct((8, 256, 256), jnp.bfloat16)
        return weights, jax.ShapeDtypeStruct((4096, 256), jnp.bfloat16)
"""
_STREAM = """
    import jax
    import jax.numpy as jnp


    def loss(weights, x):
        def layer(x, w):
            y = jnp.tanh(x.astype(jnp.bfloat16) @ w)
            return x + y, None

        x, _ = jax.lax.scan(layer, x, weights)
        return jnp.sum(x)


    def loss_inputs():
        weights = jax.ShapeDtypeStruct((8, 256, 256), jnp.bfloat16)
        return weights, jax.ShapeDtypeStruct((4096, 256), jnp.float32)
"""
_NARROW = "y + bias.astype(y.dtype)"


class WidenedResidual(TracedRule):
    """A value is kept in a wider type than it was computed from, without an explicit cast.

    ## What it does
    Finds casts to float32 or float64 that nobody wrote: a function of JAX, or an operation with a
    wider array, widens something narrower. It rewrites the program so that what is computed of that
    stays narrow, element by element and through matmuls of narrow values (sums over elements stay
    wide), differentiates again, and says what the peak, the kept bytes and the FLOPs are then. It
    is shown where that takes at least 3 % off the peak. Silent where the line casts explicitly
    (`astype`, `dtype=`), in model libraries, for what checkpoints hold, for sums with as many wide
    values, as in a residual stream that is kept in float32, and on a mesh.

    ## Why is this bad?
    It takes twice the bytes, and in a loop on every trip. `x + bias` with a float32 bias makes
    all that follows float32 as well.

    ## Use instead
    Cast the bias, the table or the mask to the type of the array; compute the statistic from
    narrow values (`jnp.mean(x * x) - mean * mean`), or checkpoint the normalisation, so that only
    its narrow input is kept.

    ## When is this fine?
    Where the precision is needed: the results differ by the rounding of the narrow type.
    """

    code = "JXR806"
    name = "widened-residual"
    severity = "info"
    bad = (
        Example(_SHIFTED.format(shifted="y + bias  # !", body="layer", dtype="bfloat16")),
        Example(_NORM.format(variance="jnp.var(x, axis=-1, keepdims=True)", mark="  # !")),
    )
    good = (
        Example(_SHIFTED.format(shifted=_NARROW, body="layer", dtype="bfloat16")),
        Example(
            _SHIFTED.format(shifted="y + bias", body="jax.checkpoint(layer)", dtype="bfloat16")
        ),
        Example(_SHIFTED.format(shifted="y + bias", body="layer", dtype="float32")),
        Example(_STREAM),
    )

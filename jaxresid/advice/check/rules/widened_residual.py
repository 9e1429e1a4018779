"""The rule `widened-residual` (JXR806)."""

from __future__ import annotations

from jaxresid.advice.check.rule import TracedRule
from jaxresid.linter.rule import Example


class WidenedResidual(TracedRule):
    """A value is kept in a wider type than it was computed from, without an explicit cast.

    ## What it does
    Finds residuals in float32 or float64 that a function of JAX, or an operation with a wider
    array, made of something narrower: `jnp.var` of bfloat16 computes in float32 and keeps the
    centred array in float32. Silent where the line casts explicitly (`astype`, `dtype=`), and in
    model libraries.

    ## Why is this bad?
    It takes twice the bytes, and in a loop on every trip. `m * x` with a float32 mask makes all
    that follows float32 as well.

    ## Use instead
    Cast the mask to the type of the array; compute the statistic from narrow values
    (`jnp.mean(x * x) - mean * mean`), or checkpoint the normalisation, so that only its narrow
    input is kept.

    ## When is this fine?
    Where the precision is needed in the backward pass.
    """

    code = "JXR806"
    name = "widened-residual"
    severity = "info"
    bad = (
        Example(
            """import jax
import jax.numpy as jnp


def norm(x):
    return x / jnp.sqrt(jnp.var(x, axis=-1, keepdims=True) + 1)  # !


def loss(w, x):
    for _ in range(4):
        x = jnp.sin(norm(x) @ w)
    return jnp.sum(x)


def loss_inputs():
    square = jax.ShapeDtypeStruct((256, 256), jnp.bfloat16)
    return square, jax.ShapeDtypeStruct((4096, 256), jnp.bfloat16)
"""
        ),
        Example(
            """import jax
import jax.numpy as jnp


def loss(w, mask, x):
    x = (x @ w) * mask  # !
    return jnp.sum(jnp.cos(jnp.sin(x)))


def loss_inputs():
    x = jax.ShapeDtypeStruct((4096, 256), jnp.bfloat16)
    mask = jax.ShapeDtypeStruct((4096, 256), jnp.float32)
    return jax.ShapeDtypeStruct((256, 256), jnp.bfloat16), mask, x
"""
        ),
    )
    good = (
        Example(
            """import jax
import jax.numpy as jnp


def loss(w, mask, x):
    x = (x @ w) * mask.astype(x.dtype)
    return jnp.sum(jnp.cos(jnp.sin(x)))


def loss_inputs():
    x = jax.ShapeDtypeStruct((4096, 256), jnp.bfloat16)
    mask = jax.ShapeDtypeStruct((4096, 256), jnp.float32)
    return jax.ShapeDtypeStruct((256, 256), jnp.bfloat16), mask, x
"""
        ),
        Example(
            """import jax
import jax.numpy as jnp


def loss(w, x):
    logits = (x @ w).astype(jnp.float32)
    return jnp.mean(jnp.cos(jnp.sin(logits)))


def loss_inputs():
    x = jax.ShapeDtypeStruct((4096, 256), jnp.bfloat16)
    return jax.ShapeDtypeStruct((256, 256), jnp.bfloat16), x
"""
        ),
        Example(
            """import jax
import jax.numpy as jnp


def loss(w, x):
    x = x / jnp.sqrt(jnp.var(x, axis=-1, keepdims=True) + 1)
    return jnp.sum(jnp.cos(jnp.sin(x @ w)))


def loss_inputs():
    x = jax.ShapeDtypeStruct((4096, 256), jnp.float32)
    return jax.ShapeDtypeStruct((256, 256), jnp.float32), x
"""
        ),
    )

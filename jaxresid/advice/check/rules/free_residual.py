"""The rule `free-residual` (JXR807)."""

from __future__ import annotations

from jaxresid.advice.check.rule import TracedRule
from jaxresid.linter.rule import Example

_ATTENTION = """import jax
import jax.numpy as jnp
from jax import lax


def layer(x, w):
    scores = x @ w
    causal = jnp.tril(jnp.ones(scores.shape, bool)){mark}
    return jnp.sin(jnp.cos(jnp.sin(jnp.where(causal, scores, 0.0)))), None


def loss(ws, x):
    x, _ = lax.scan({layer}, x, ws)
    return jnp.sum(x**2)


def loss_inputs():
    squares = jax.ShapeDtypeStruct((4, 256, 256), jnp.float32)
    return squares, jax.ShapeDtypeStruct((256, 256), jnp.float32)
"""


class FreeResidual(TracedRule):
    """A value made of constants alone, such as a mask, is kept for the backward pass of a loop.

    ## What it does
    Finds residuals that are made of literals, iota and scalars by elementwise operations and that
    the backward pass of a loop reads, where they are at least 1 % of what is kept. In
    straight-line code it is silent: compilers fold such values into what reads them.

    ## Why is this bad?
    A comparison of two iotas costs next to nothing to compute, but its result takes a byte for each
    element.

    ## Use instead
    Compute it in a checkpointed body, with a policy that saves what is expensive; the backward pass
    then recomputes it.

    ## When is this fine?
    Where the mask is small.
    """

    bad = (Example(_ATTENTION.format(mark="  # !", layer="layer")),)
    good = (
        Example(
            _ATTENTION.format(
                mark="",
                layer="jax.checkpoint(\n        layer, policy=jax.checkpoint_policies.dots_saveable"
                ", prevent_cse=False\n    )",
            )
        ),
        Example(
            """import jax
import jax.numpy as jnp


def loss(w, x):
    scores = x @ w
    causal = jnp.tril(jnp.ones(scores.shape, bool))
    return jnp.sum(jax.nn.softmax(jnp.where(causal, scores, -1e9)) ** 2)


def loss_inputs():
    square = jax.ShapeDtypeStruct((256, 256), jnp.float32)
    return square, square
"""
        ),
    )

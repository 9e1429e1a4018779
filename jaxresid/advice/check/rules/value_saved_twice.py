"""The rule `value-saved-twice` (JXR803)."""

from __future__ import annotations

from jaxresid.advice.check.rule import TracedRule
from jaxresid.linter.rule import Example


class ValueSavedTwice(TracedRule):
    """Two checkpoints each keep a copy of the same value.

    ## What it does
    Finds values that a checkpoint keeps although an earlier checkpoint keeps an equal one: the same
    operations of the same inputs.

    ## Why is this bad?
    The barriers around checkpoints keep a compiler from seeing that the two are equal, so the value
    is computed and stored twice.

    ## Use instead
    Compute it once outside the checkpoints and pass it to both, or put both uses under one
    checkpoint.

    ## When is this fine?
    Where the function is called twice on purpose, as in a test of its determinism.
    """

    bad = (
        Example(
            """import jax
import jax.numpy as jnp

dots = jax.checkpoint_policies.dots_saveable


def features(w, x):
    return x @ w  # !


def head(w, x):
    return jnp.sin(jnp.cos(features(w, x)))


def loss(w, x):
    checkpointed = jax.checkpoint(head, policy=dots)
    return jnp.sum(checkpointed(w, x) + 2 * checkpointed(w, x))


def loss_inputs():
    square = jax.ShapeDtypeStruct((256, 256), jnp.float32)
    return square, jax.ShapeDtypeStruct((4096, 256), jnp.float32)
"""
        ),
    )
    good = (
        Example(
            """import jax
import jax.numpy as jnp


def head(w, x):
    return jnp.sin(jnp.cos(x @ w))


def loss(w, x):
    return jnp.sum(head(w, x) + 2 * head(w, x))


def loss_inputs():
    square = jax.ShapeDtypeStruct((256, 256), jnp.float32)
    return square, jax.ShapeDtypeStruct((4096, 256), jnp.float32)
"""
        ),
        Example(
            """import jax
import jax.numpy as jnp
from jax import lax

dots = jax.checkpoint_policies.dots_saveable


def layer(x, w):
    return jnp.sin(jnp.cos(jnp.sin(x @ w))), None


def loss(ws, x):
    x, _ = lax.scan(jax.checkpoint(layer, policy=dots, prevent_cse=False), x, ws)
    return jnp.sum(x**2)


def loss_inputs():
    squares = jax.ShapeDtypeStruct((8, 256, 256), jnp.float32)
    return squares, jax.ShapeDtypeStruct((4096, 256), jnp.float32)
"""
        ),
    )

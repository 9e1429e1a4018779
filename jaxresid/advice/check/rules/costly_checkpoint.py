"""The rule `costly-checkpoint` (JXR802)."""

from __future__ import annotations

from jaxresid.advice.check.rule import TracedRule
from jaxresid.linter.rule import Example


class CostlyCheckpoint(TracedRule):
    """The program takes more memory with a checkpoint than without it.

    ## What it does
    Takes each checkpoint out of the traced program, by itself, and compares the estimated peak
    with and without it. Reports those with which the peak is more than 2 % higher.

    ## Why is this bad?
    A checkpoint keeps its inputs. Where they are larger than what its function keeps otherwise, as
    after a broadcast, a gather or a one-hot, it keeps more than it drops, and recomputes as well.

    ## Use instead
    Move the code that makes the inputs large inside the checkpoint, or remove the checkpoint.

    ## When is this fine?
    Where the estimate is for a place other than yours: `--on` names the place, `--on cpu` XLA:CPU.
    """

    bad = (
        Example(
            """import jax
import jax.numpy as jnp


def pooled(wide):
    return jnp.sin(jnp.sum(wide, axis=-1))


def loss(weights, x):
    def layer(x, w):
        wide = jnp.sin(x[:, None] * w)
        return jax.checkpoint(pooled)(wide), None  # !

    x, _ = jax.lax.scan(layer, x, weights)
    return jnp.sum(jnp.cos(x))


def loss_inputs():
    return jax.ShapeDtypeStruct((8, 1024), jnp.float32), jax.ShapeDtypeStruct((2048,), jnp.float32)
"""
        ),
    )
    good = (
        Example(
            """import jax
import jax.numpy as jnp


def pooled(x, w):
    return jnp.sin(jnp.sum(jnp.sin(x[:, None] * w), axis=-1))


def loss(weights, x):
    x, _ = jax.lax.scan(lambda x, w: (jax.checkpoint(pooled)(x, w), None), x, weights)
    return jnp.sum(jnp.cos(x))


def loss_inputs():
    return jax.ShapeDtypeStruct((8, 1024), jnp.float32), jax.ShapeDtypeStruct((2048,), jnp.float32)
"""
        ),
    )

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

    code = "JXR802"
    name = "costly-checkpoint"
    severity = "warning"
    bad = (
        Example(
            """import jax
import jax.numpy as jnp


def pooled(y):
    return jnp.sin(jnp.sum(y * y[::-1], axis=-1))


def loss(w, x):
    wide = jnp.sin(x[:, None] @ w)
    y = jax.checkpoint(lambda y: jnp.sin(jnp.sum(y, axis=-1)))(wide)  # !
    return jnp.sum(jnp.cos(y))


def loss_inputs():
    return jax.ShapeDtypeStruct((1, 4096), jnp.float32), jax.ShapeDtypeStruct((8192,), jnp.float32)
"""
        ),
    )
    good = (
        Example(
            """import jax
import jax.numpy as jnp


def pooled(w, x):
    return jnp.sin(jnp.sum(jnp.sin(x[:, None] @ w), axis=-1))


def loss(w, x):
    return jnp.sum(jnp.cos(jnp.sin(pooled(w, x))))


def loss_inputs():
    return jax.ShapeDtypeStruct((1, 4096), jnp.float32), jax.ShapeDtypeStruct((8192,), jnp.float32)
"""
        ),
    )

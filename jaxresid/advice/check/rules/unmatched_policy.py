"""The rule `unmatched-policy` (JXR804)."""

from __future__ import annotations

from jaxresid.advice.check.rule import TracedRule
from jaxresid.linter.rule import Example


class UnmatchedPolicy(TracedRule):
    """A checkpoint policy finds nothing to save in its function.

    ## What it does
    Asks the policy of each checkpoint about everything that the checkpointed function computes,
    as JAX does, and reports policies over matrix products that save none of it. Policies over
    names are reported as `undefined-checkpoint-name`.

    ## Why is this bad?
    A policy that matches nothing is no policy: everything is recomputed.
    `dots_with_no_batch_dims_saveable` does not save products of two batched arrays, convolutions,
    or what a custom kernel computes.

    ## Use instead
    `dots_saveable`, which saves batched products and convolutions as well, or names given with
    `checkpoint_name`.

    ## When is this fine?
    Where one policy serves all layers and some have nothing that it could save.
    """

    bad = (
        Example(
            """import jax
import jax.numpy as jnp

no_batch = jax.checkpoint_policies.dots_with_no_batch_dims_saveable


def attention(x):
    scores = jnp.einsum("bqd,bkd->bqk", x, x)
    return jnp.einsum("bqk,bkd->bqd", jnp.sin(jnp.cos(scores)), x)


def loss(x):
    for _ in range(4):
        x = jax.checkpoint(attention, policy=no_batch)(x)  # !
    return jnp.sum(x)


def loss_inputs():
    return (jax.ShapeDtypeStruct((8, 512, 64), jnp.float32),)
"""
        ),
    )
    good = (
        Example(
            """import jax
import jax.numpy as jnp

dots = jax.checkpoint_policies.dots_saveable


def attention(x):
    scores = jnp.einsum("bqd,bkd->bqk", x, x)
    return jnp.einsum("bqk,bkd->bqd", jnp.sin(jnp.cos(jnp.sin(scores))), x)


def loss(x):
    for _ in range(4):
        x = jax.checkpoint(attention, policy=dots)(x)
    return jnp.sum(x)


def loss_inputs():
    return (jax.ShapeDtypeStruct((8, 512, 64), jnp.float32),)
"""
        ),
        Example(
            """import jax
import jax.numpy as jnp

nothing = jax.checkpoint_policies.nothing_saveable


def layer(w, x):
    return jnp.sin(jnp.cos(jnp.sin(x @ w)))


def loss(w, x):
    for _ in range(8):
        x = jax.checkpoint(layer, policy=nothing)(w, x)
    return jnp.sum(x**2)


def loss_inputs():
    square = jax.ShapeDtypeStruct((256, 256), jnp.float32)
    return square, jax.ShapeDtypeStruct((4096, 256), jnp.float32)
"""
        ),
    )

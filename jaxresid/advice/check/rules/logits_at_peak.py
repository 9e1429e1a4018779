"""The rule `logits-at-peak` (JXR830)."""

from __future__ import annotations

from jaxresid.advice.check.rule import TracedRule
from jaxresid.linter.rule import Example


class LogitsAtPeak(TracedRule):
    """The logits of all tokens are in memory at the peak, where those of some would do.

    ## What it does
    Finds a matmul whose result is read by a softmax, a logsumexp or a cross-entropy and by nothing
    else, and is live at the peak, often with a float32 copy and the probabilities. It rewrites the
    trace so that the loss of a part of the tokens is computed at a time, in a checkpoint,
    differentiates that again, and says what the peak, the kept bytes and the FLOPs are then. The
    part is the largest with which the logits no longer matter. It is shown where that takes at
    least 3 % off the peak. Silent where the logits are returned or read by anything else, are in
    a checkpoint, or where the loss mixes tokens, and for programs on a mesh.

    ## Why is this bad?
    A vocabulary is large: the logits of 8 sequences of 2048 tokens by 50257 words take 3.07 GiB in
    float32, and the gradient and the probabilities as much again. Each token's loss needs its own
    logits alone.

    ## Use instead
    `jax.lax.map(jax.checkpoint(loss_of_tokens), chunks)`, where `loss_of_tokens` computes the
    logits of some tokens and their loss. The backward pass then computes one matmul again.

    ## When is this fine?
    Where the memory is there, and the step is to be as fast as it can be.
    """

    bad = (
        Example(
            """import jax
import jax.numpy as jnp


def loss(w, x, labels):
    logits = x @ w  # !
    picked = jnp.take_along_axis(logits, labels[:, None], axis=1)
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - picked[:, 0])


def loss_inputs():
    w = jax.ShapeDtypeStruct((64, 8192), jnp.float32)
    x = jax.ShapeDtypeStruct((2048, 64), jnp.float32)
    return w, x, jax.ShapeDtypeStruct((2048,), jnp.int32)
"""
        ),
    )
    good = (
        Example(
            """import jax
import jax.numpy as jnp


def loss(w, x, labels):
    def loss_of_tokens(part):
        x, labels = part
        logits = x @ w
        picked = jnp.take_along_axis(logits, labels[:, None], axis=1)
        return jax.nn.logsumexp(logits, axis=-1) - picked[:, 0]

    parts = x.reshape(8, 256, 64), labels.reshape(8, 256)
    return jnp.mean(jax.lax.map(jax.checkpoint(loss_of_tokens), parts))


def loss_inputs():
    w = jax.ShapeDtypeStruct((64, 8192), jnp.float32)
    x = jax.ShapeDtypeStruct((2048, 64), jnp.float32)
    return w, x, jax.ShapeDtypeStruct((2048,), jnp.int32)
"""
        ),
        Example(
            """import jax
import jax.numpy as jnp


def loss(w, x, labels):
    logits = x @ w
    picked = jnp.take_along_axis(logits, labels[:, None], axis=1)
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - picked[:, 0])


def loss_inputs():
    w = jax.ShapeDtypeStruct((4096, 16), jnp.float32)
    x = jax.ShapeDtypeStruct((2048, 4096), jnp.float32)
    return w, x, jax.ShapeDtypeStruct((2048,), jnp.int32)
"""
        ),
    )

"""The rule `attention-scores-at-peak` (JXR841)."""

from __future__ import annotations

from jaxresid.advice.check.rule import TracedRule
from jaxresid.linter.rule import Example

_ATTENTION = """
    import jax
    import jax.numpy as jnp


    def attend(q, k, v):
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k){mark}
        return jnp.einsum("bhqk,bkhd->bqhd", {weights}, v)


    def loss(weights, x):
        for w in weights:
            q, k, v = jnp.split((x @ w).reshape(2, 1024, 24, 32), 3, axis=2)
            x = x + {call}.reshape(2, 1024, 256)
        return jnp.sum(x ** 2)


    def loss_inputs():
        weights = [jax.ShapeDtypeStruct((256, 768), jnp.float32)] * {layers}
        return weights, jax.ShapeDtypeStruct((2, 1024, 256), jnp.float32)
"""
_PARTS = (
    "jnp.moveaxis(jax.lax.map(jax.checkpoint(lambda q: attend(q, k, v)),"
    " jnp.moveaxis(q.reshape(2, 8, 128, 8, 32), 1, 0)), 0, 1)"
)
_SOFTMAX = "jax.nn.softmax(scores)"


class AttentionScoresAtPeak(TracedRule):
    """Attention makes all scores at once, and they are in memory at the peak.

    ## What it does
    Finds a matmul to scores, a softmax over the keys and a matmul with the values, by how values
    flow: with scales, masks, biases, caps and dropout in between, by einsum or
    `jax.nn.dot_product_attention`, in your code or inside a library. It rewrites all such attention
    of a line to attend with some of the queries at a time, in a scan whose body is a checkpoint,
    differentiates again, and says what the peak, the kept bytes and the FLOPs are then. The number
    of queries is the biggest that costs nothing, and at least 128. It is shown where that takes at
    least 3 % off the peak. Silent where the scores are in a checkpoint, where something else reads
    them, for programs on a mesh, and on a TPU for less than 128 MiB, which may be in its vector
    memory and so no part of the peak.

    ## Why is this bad?
    There is a score for each pair of a query and a key, in each head. The softmax keeps them for
    the backward pass, often twice and in float32: more than all else that a layer keeps, from some
    thousand tokens on.

    ## Use instead
    A kernel that never has all scores in memory: on an NVIDIA GPU `jax.nn.dot_product_attention(q,
    k, v, implementation="cudnn")` (float16 or bfloat16), on a TPU splash attention
    (`jax.experimental.pallas.ops.tpu.splash_attention`). The default of
    `jax.nn.dot_product_attention` makes all scores. The figures are not those of a kernel: they are
    of attention in parts, which needs none and runs anywhere:
    `jax.lax.map(jax.checkpoint(lambda q: attend(q, k, v)), parts_of_q)`.

    ## When is this fine?
    Where the memory is there: parts make the scores once more in the backward pass.
    """

    bad = (
        Example(
            _ATTENTION.format(weights=_SOFTMAX, call="attend(q, k, v)", layers=4, mark="  # !")
        ),
    )
    good = (
        Example(_ATTENTION.format(weights=_SOFTMAX, call=_PARTS, layers=4, mark="")),
        # Linear attention without a softmax.
        Example(_ATTENTION.format(weights="scores", call="attend(q, k, v)", layers=4, mark="")),
    )

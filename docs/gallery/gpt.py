"""A decoder of twelve layers in a Python loop, plain and with a checkpoint around each layer."""

import jax
import jax.numpy as jnp

LAYERS, WIDTH, HEADS, BATCH, LENGTH, VOCAB = 12, 768, 12, 8, 1024, 50304


def norm(x, gain):
    return x * jax.lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-6) * gain


def attention(x, p):
    q, k, v = jnp.split(x @ p["qkv"], 3, -1)
    q, k, v = (each.reshape(*x.shape[:2], HEADS, -1) for each in (q, k, v))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(WIDTH // HEADS).astype(x.dtype)
    mask = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))
    weights = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf))
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape) @ p["out"]


def mlp(x, p):
    return jax.nn.gelu(x @ p["up"]) @ p["down"]


def layer(x, p):
    x = x + attention(norm(x, p["gain1"]), p)
    return x + mlp(norm(x, p["gain2"]), p)


def loss(params, tokens, layer=layer):
    x = params["embed"][tokens]
    for p in params["layers"]:
        x = layer(x, p)
    logits = x @ params["embed"].T
    picked = jnp.take_along_axis(logits, tokens[..., None], -1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits.astype(jnp.float32), -1) - picked)


def checkpointed(params, tokens):
    return loss(params, tokens, jax.checkpoint(layer))


def example_inputs():
    def weights(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16)

    one = {
        "qkv": weights(WIDTH, 3 * WIDTH),
        "out": weights(WIDTH, WIDTH),
        "up": weights(WIDTH, 4 * WIDTH),
        "down": weights(4 * WIDTH, WIDTH),
        "gain1": weights(WIDTH),
        "gain2": weights(WIDTH),
    }
    params = {"embed": weights(VOCAB, WIDTH), "layers": [one] * LAYERS}
    return params, jax.ShapeDtypeStruct((BATCH, LENGTH), jnp.int32)

from functools import partial

import jax
import jax.numpy as jnp


def half(x, w):
    return jnp.sin(jnp.tanh(x @ w) @ w)


@partial(jax.checkpoint, prevent_cse=False)
def step(x, w):
    return jax.checkpoint(half)(jax.checkpoint(half)(x, w), w), None


def loss(ws, x):
    return jnp.sum(jax.lax.scan(step, x, ws)[0])

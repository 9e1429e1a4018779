import jax
import jax.numpy as jnp


def step(x, w):
    return jnp.sin(jnp.tanh(x @ w) @ w), None


def loss(ws, x):
    body = jax.checkpoint(step)
    for w in ws:
        x, _ = body(x, w)
    return jnp.sum(x)

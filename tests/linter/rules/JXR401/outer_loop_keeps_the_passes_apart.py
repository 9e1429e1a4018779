import jax
import jax.numpy as jnp


def step(x, w):
    return jnp.sin(jnp.tanh(x @ w) @ w), None


def group(x, ws):
    body = jax.checkpoint(step, prevent_cse=False)
    return jax.lax.scan(body, x, ws, unroll=True)[0], None


def loss(ws, x):
    return jnp.sum(jax.lax.scan(group, x, ws)[0])

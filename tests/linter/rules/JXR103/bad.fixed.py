import jax
import jax.numpy as jnp
from jax import lax


def step(c, w):
    return jnp.tanh(c @ w), None


def loss(ws, x):
    h, _ = lax.scan(jax.checkpoint(step, prevent_cse=False), x, ws)
    return h.sum()


gradient = jax.grad(loss)

import jax
import jax.numpy as jnp


def step(x, w):
    return jnp.sin(jnp.tanh(x @ w) @ w), None


def run(ws, x, fast=False):
    body = jax.checkpoint(step, prevent_cse=False)
    return jax.lax.scan(body, x, ws, length=6, unroll=3 if fast else 1)[0]

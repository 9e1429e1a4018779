import jax
import jax.numpy as jnp


def step(x, w):
    return jnp.sin(jnp.tanh(x @ w) @ w), None


def run(ws, x, unroll_layers=False):
    n = len(ws)
    body = jax.checkpoint(step, prevent_cse=False)  # !
    x, _ = jax.lax.scan(body, x, ws, length=n, unroll=n if unroll_layers else 1)
    return x

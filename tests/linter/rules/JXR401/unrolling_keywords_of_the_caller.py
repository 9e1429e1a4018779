import jax
import jax.numpy as jnp


def step(x, w):
    return jnp.sin(jnp.tanh(x @ w) @ w), None


def loss(ws, x, **options):
    body = jax.checkpoint(step, prevent_cse=False)
    return jnp.sum(jax.lax.scan(body, x, ws, **options)[0])

import jax
import jax.numpy as jnp


def step(c, w):
    return jnp.tanh(c @ w), None


def predict(ws, x):
    return jax.lax.scan(step, x, ws)

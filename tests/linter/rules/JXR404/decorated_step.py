import jax
import jax.numpy as jnp


@jax.checkpoint  # !
def step(x, w):
    return jnp.sin(jnp.tanh(x @ w) @ w), None


def loss(ws, x):
    return jnp.sum(jax.lax.scan(step, x, ws)[0])

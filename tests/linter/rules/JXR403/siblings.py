import jax
import jax.numpy as jnp


def layer(w, x):
    return jnp.sin(jnp.tanh(x @ w) @ w)


def loss(ws, x):
    one = jax.checkpoint(layer, prevent_cse=False)
    two = jax.checkpoint(layer)
    return two(ws, one(ws, x))

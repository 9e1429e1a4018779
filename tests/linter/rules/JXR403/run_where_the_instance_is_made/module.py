import jax
import jax.numpy as jnp


def layer(w, x):
    return jnp.sin(jnp.tanh(x @ w) @ w)


def shift(w, x):
    by = jax.checkpoint(layer, prevent_cse=False)(w, x)
    return lambda x: x + by

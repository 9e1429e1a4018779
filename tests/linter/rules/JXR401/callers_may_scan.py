#: Nobody here differentiates it, nor loops over layers.
import jax
import jax.numpy as jnp


def layer(w, x):
    return jnp.sin(jnp.tanh(x @ w) @ w)


def block(w, x):
    return jax.checkpoint(layer, prevent_cse=False)(w, x)

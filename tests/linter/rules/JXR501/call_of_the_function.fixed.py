import jax
import jax.numpy as jnp


def layer(w, x):
    return jnp.tanh(x @ w)


def loss(w, x):
    return jax.checkpoint(layer)(w, x).sum()

import jax
import jax.numpy as jnp


def layer(w, x):
    return jnp.sin(jnp.tanh(x @ w) @ w)


def pair(ws, x):
    inner = jax.checkpoint(layer, prevent_cse=False)  # !
    return inner(ws[1], inner(ws[0], x))

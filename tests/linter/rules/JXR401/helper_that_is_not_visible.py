import jax
import jax.numpy as jnp
from elsewhere import repeat


def layer(w, x):
    return jnp.sin(jnp.tanh(x @ w) @ w)


def loss(ws, x):
    block = jax.checkpoint(layer, prevent_cse=False)
    return jnp.sum(repeat(block)(ws, block(ws[0], x)))


def step(ws, x):
    return jax.value_and_grad(loss)(ws, x)

import functools

import jax
import jax.numpy as jnp
from jax import remat


@functools.partial(remat, prevent_cse=False)  # !
def layer(w, x):
    return jnp.sin(jnp.tanh(x @ w) @ w)


def pair(ws, x):
    return layer(ws[1], layer(ws[0], x))


@jax.checkpoint
def stage(ws, x):
    return jnp.tanh(pair(ws, x))


def loss(ws, x):
    return jnp.sum(stage(ws[1], stage(ws[0], x)))

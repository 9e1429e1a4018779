from jax import numpy as jnp
from jax import remat as ckpt


def loss(w, x):
    h = jnp.tanh(x @ w)
    return ckpt(h, prevent_cse=False)()  # !

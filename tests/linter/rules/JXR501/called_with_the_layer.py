from jax import numpy as jnp
from jax import remat as ckpt


def layer(w, x):
    return jnp.tanh(x @ w)


rematted = ckpt(prevent_cse=False)(layer)  # !

import functools

import jax
from jax import checkpoint_policies as cp


def block(w, x):
    return jax.numpy.sin(x @ w)

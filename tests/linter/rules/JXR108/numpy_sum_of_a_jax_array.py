#: NumPy's sum calls the method of a JAX array.
import jax
import numpy as np


def step(x, _):
    y = jax.numpy.tanh(x)
    return y, y


def energy(x):
    return np.sum(jax.lax.scan(jax.checkpoint(step), x, length=100)[0])

import jax
import numpy as np


def step(x, _):
    y = jax.numpy.tanh(x)
    return y, y


def simulate(x, log):
    last, path = jax.lax.scan(jax.checkpoint(step), x, length=100)
    log.save(np.asarray(path))
    return last

import jax
import numpy as np


def step(x, _):
    y = jax.numpy.tanh(x)
    return y, y


def rollout(x):
    return jax.lax.scan(jax.checkpoint(step), x, length=100)[1]


def simulate(x):
    return np.asarray(rollout(x))

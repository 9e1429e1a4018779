import jax
import numpy as np


def step(x, _):
    y = jax.numpy.tanh(x)
    return y, y


class Simulation:
    def run(self, x):
        last, path = jax.lax.scan(jax.checkpoint(step), x, length=100)
        self.path = path
        return np.asarray(last)

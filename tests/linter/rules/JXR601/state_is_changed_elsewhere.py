import jax
from flax import nnx


class Block(nnx.Module):
    def __init__(self):
        self.calls = nnx.Variable(0)

    def reset(self):
        self.calls[...] = 0

    @jax.checkpoint
    def __call__(self, x):
        return jax.numpy.sin(x)

import jax
from flax import nnx


class Block(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.BatchNorm(4, rngs=rngs)

    def __call__(self, x):
        return jax.numpy.sin(self.norm(x))


class Model(nnx.Module):
    def __init__(self, rngs):
        self.block = Block(rngs)

    def __call__(self, x):
        return nnx.remat(lambda m, x: m(x))(self.block, x)

import jax
from flax import nnx


class Block(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.BatchNorm(4, rngs=rngs)

    def __call__(self, x):
        return jax.numpy.sin(self.norm(x))


def forward(block: Block, x):
    @nnx.remat  # !
    def run(x):
        return block(x)

    return run(x)

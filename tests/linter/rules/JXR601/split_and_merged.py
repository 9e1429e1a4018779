import jax
from flax import nnx


class Block(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.BatchNorm(4, rngs=rngs)

    def __call__(self, x):
        return jax.numpy.sin(self.norm(x))


def forward(model: Block, x):
    graph, state = nnx.split(model)

    @jax.checkpoint
    def run(state, x):
        m = nnx.merge(graph, state)
        return m(x), nnx.state(m)

    return run(state, x)

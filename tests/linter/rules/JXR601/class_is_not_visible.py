import jax
from flax import nnx


from models import Block


@jax.checkpoint
def run(block: Block, x):
    return block(x)

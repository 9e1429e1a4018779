from flax.linen import partitioning as nn_partitioning
import flax.linen as nn


class Block(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(x)


def model(x):
    return nn_partitioning.remat(Block, static_argnums=(1,))()(x)

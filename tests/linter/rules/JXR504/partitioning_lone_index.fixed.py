from flax.linen import partitioning as nn_partitioning
import flax.linen as nn


class Block(nn.Module):
    @nn.compact
    def __call__(self, x, mask, train: bool):
        y = nn.Dense(3)(x)
        return y * 2 if train else y


def model(x):
    block = nn_partitioning.remat(Block, static_argnums=(2,))
    return block()(x, None, True)

from flax.linen import partitioning as nn_partitioning
import flax.linen as nn


class Block(nn.Module):
    def __call__(self, x, mask, train: bool = True):
        return x * 2 if train else x


def model(x):
    return nn_partitioning.remat(Block, static_argnums=(2,))()(x, None)

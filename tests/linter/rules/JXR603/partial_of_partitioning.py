from functools import partial

import flax.linen as nn
from flax.linen import partitioning as nn_partitioning

remat = partial(nn_partitioning.remat, prevent_cse=True)


class Block(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(4)(x)


class Model(nn.Module):
    remat: bool = False

    @nn.compact
    def __call__(self, x):
        if self.remat:
            layer = remat(Block)
        else:
            layer = Block
        return layer()(x)  # !

import flax.linen as nn


class Block(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(4)(x)


def make(remat):
    Layer = nn.remat(Block) if remat else Block
    return Layer()

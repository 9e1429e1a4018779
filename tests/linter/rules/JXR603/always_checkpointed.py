import flax.linen as nn


class Block(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(4)(x)


class Model(nn.Module):
    remat: bool = False

    @nn.compact
    def __call__(self, x):
        Layer = nn.remat(Block)
        return Layer()(x)

#: The arguments may hold a name.
import flax.linen as nn


class Block(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(4)(x)


class Model(nn.Module):
    remat: bool = False

    @nn.compact
    def __call__(self, x, **options):
        Layer = nn.remat(Block) if self.remat else Block
        return Layer(**options)(x)

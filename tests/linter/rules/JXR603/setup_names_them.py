import flax.linen as nn


class Block(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(4)(x)


class Model(nn.Module):
    remat: bool = False

    def setup(self):
        Layer = nn.remat(Block) if self.remat else Block
        self.layers = [Layer() for _ in range(2)]

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

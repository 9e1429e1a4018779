#: The class keeps its name.
import flax.linen as nn


class Block(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(4)(x)


class Model(nn.Module):
    remat: bool = False

    @nn.compact
    def __call__(self, x):
        run = lambda m, x: m(x)
        return (nn.remat(run) if self.remat else run)(Block(), x)

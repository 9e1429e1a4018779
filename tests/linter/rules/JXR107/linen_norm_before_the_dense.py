import flax.linen as nn


class Head(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.LayerNorm()(x)
        return nn.Dense(8)(x)


class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.remat(Head)()(x)

import flax.linen as nn


class Linear(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.gelu(nn.Dense(8)(x))


class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.remat(Linear)()(x)

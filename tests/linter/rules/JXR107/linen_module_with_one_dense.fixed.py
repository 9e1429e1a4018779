import flax.linen as nn


class Projection(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(8, use_bias=False)(x)


class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.gelu(Projection()(x))

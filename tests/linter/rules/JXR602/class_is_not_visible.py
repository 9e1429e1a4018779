import flax.linen as nn
from blocks import make


class Model(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.remat(make())(x)

import flax.linen as nn


class Mlp(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(8)(nn.gelu(nn.gelu(nn.Dense(32)(x))))


class Block(nn.Module):
    @nn.compact
    def __call__(self, x):
        for _ in range(3):
            x = x + nn.remat(Mlp)()(x)
        return x

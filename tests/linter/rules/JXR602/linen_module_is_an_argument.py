import flax.linen as nn
import jax


class Block(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(4)(x)


class Model(nn.Module):
    @nn.compact
    def __call__(self, x):
        block = Block()
        return nn.remat(lambda m, x: m(x))(block, x)

import flax.linen as nn
import jax


class Block(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(4)(x)


class Model(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.remat(Block())(x)  # !

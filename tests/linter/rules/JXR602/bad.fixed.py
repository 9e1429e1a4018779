import flax.linen as nn
import jax


class Model(nn.Module):
    @nn.remat
    @nn.compact
    def __call__(self, x):
        return nn.Dense(4)(x)

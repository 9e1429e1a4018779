import flax.linen as nn
import jax


class Block(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(4)(x)


class Model(nn.Module):
    def setup(self):
        self.block = Block()

    def run(self, x):
        return self.block(x)

    def __call__(self, x):
        return jax.checkpoint(self.run)(x)

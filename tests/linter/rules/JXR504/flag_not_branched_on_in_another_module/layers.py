import flax.linen as nn


class Block(nn.Module):
    @nn.compact
    def __call__(self, x, deterministic):
        return nn.Dense(4)(x) * deterministic

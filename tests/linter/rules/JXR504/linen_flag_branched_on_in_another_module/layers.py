import flax.linen as nn


class Block(nn.Module):
    @nn.compact
    def __call__(self, x, deterministic):
        x = nn.Dense(4)(x)
        return x if deterministic else nn.relu(x)

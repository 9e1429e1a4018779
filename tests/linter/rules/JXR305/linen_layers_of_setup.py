from flax import linen as nn
from jax.ad_checkpoint import checkpoint_name


class Mlp(nn.Module):
    def setup(self):
        self.up = nn.Dense(8)

    @nn.compact
    def __call__(self, x):
        h = checkpoint_name(nn.gelu(self.up(x)), "a")  # !
        h = checkpoint_name(nn.relu(nn.Dense(8, name="mid")(h)), "b")  # !
        return nn.Dense(8, name="down")(h)

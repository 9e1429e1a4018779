import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.ad_checkpoint import checkpoint_name


class Block(nn.Module):
    @nn.compact
    def __call__(self, x):
        y = nn.Dense(8)(x)
        z = checkpoint_name(y, "a")
        self.sow("intermediates", "y", y)
        jax.debug.print("{}", y)
        assert y is not None
        return jnp.sin(z), jnp.mean(jax.lax.stop_gradient(y))

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.ad_checkpoint import checkpoint_name


class Block(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = jnp.sin(nn.Dense(8)(x))
        return checkpoint_name(jnp.sin(nn.Dense(8)(x)), "out")  # !


class Model(nn.Module):
    @nn.compact
    def __call__(self, x):
        policy = jax.checkpoint_policies.save_only_these_names("out")
        block = nn.remat(Block, policy=policy)
        for i in range(2):
            x = block(name=f"block_{i}")(x)
        return jnp.sin(x)

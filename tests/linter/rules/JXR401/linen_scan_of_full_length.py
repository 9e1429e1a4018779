import flax.linen as nn
import jax.numpy as jnp


class Block(nn.Module):
    @nn.compact
    def __call__(self, x, _):
        return jnp.sin(nn.Dense(x.shape[-1])(jnp.tanh(x))), None


class Model(nn.Module):
    @nn.compact
    def __call__(self, x):
        stack = nn.scan(
            nn.remat(Block, prevent_cse=False),  # !
            variable_axes={"params": 0},
            split_rngs={"params": True},
            length=4,
            unroll=4,
        )
        return stack()(x, None)[0]

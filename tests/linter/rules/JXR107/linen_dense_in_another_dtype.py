import flax.linen as nn
import jax.numpy as jnp


class Attention(nn.Module):
    dim: int = 256
    ckpt: bool = True

    def setup(self):
        dense = nn.Dense
        if self.ckpt:
            dense = nn.remat(nn.Dense)
        self.qkv = dense(3 * self.dim, dtype=jnp.bfloat16, param_dtype=jnp.float32)

    def __call__(self, x):
        return self.qkv(x)

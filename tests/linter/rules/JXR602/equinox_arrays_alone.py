import equinox as eqx
import jax


class Block(eqx.Module):
    w: jax.Array

    @jax.checkpoint
    def __call__(self, x):
        return self.w @ x

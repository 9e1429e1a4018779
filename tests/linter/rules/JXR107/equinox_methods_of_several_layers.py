import equinox as eqx
import jax


class Block(eqx.Module):
    inner: eqx.nn.Linear
    outer: eqx.nn.Linear
    attend: eqx.nn.MultiheadAttention

    @eqx.filter_checkpoint
    def mlp(self, x):
        return self.outer(jax.nn.gelu(self.inner(x)))

    @eqx.filter_checkpoint
    def two(self, x):
        return self.outer(self.inner(x))

    @eqx.filter_checkpoint
    def mix(self, x):
        return self.attend(x, x, x)

    @eqx.filter_checkpoint
    def activated(self, x):
        return self.outer(jax.nn.gelu(x))

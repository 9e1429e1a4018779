import jax


class Block:
    @jax.checkpoint
    def __call__(self, x):
        return x

import jax


@jax.checkpoint
def identity(x):
    pass

import jax


@jax.checkpoint
def layer(x):
    return jax.numpy.sin(x)

import jax
from jax import checkpoint


def layer(x):
    return checkpoint(jax.numpy.sin)(x)

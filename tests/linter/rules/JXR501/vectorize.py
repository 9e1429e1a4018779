import jax
import jax.numpy as jnp


def loss(x):
    f = jax.checkpoint(jnp.vectorize(lambda a: a * a))
    return f(x).sum()

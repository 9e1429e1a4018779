import jax
import jax.numpy as jnp
from jax.experimental import io_callback

seen = []


def layer(x):
    io_callback(seen.append, None, jax.lax.stop_gradient(x))  # !
    return jnp.sin(x)


def loss(x):
    return jax.remat(layer)(x).sum()

import jax
import jax.numpy as jnp
from mylib import debug


@jax.checkpoint
def layer(x):
    debug.print('x = {}', x)
    return jnp.sin(x)

from functools import partial

import jax
import jax.numpy as jnp
from jax import debug

seen = []


@partial(jax.checkpoint, policy=jax.checkpoint_policies.dots_saveable)
def layer(x):
    y = jnp.sin(x)
    debug.callback(seen.append, y)  # !
    return y

import functools

import jax.numpy as jnp
from jax import remat


@functools.partial(remat, policy=lambda prim, *_, **__: prim.name == "sin")  # !
def run(x):
    return jnp.sin(jnp.sin(jnp.sin(x)))

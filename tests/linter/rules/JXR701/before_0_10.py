#: jax 0.9
import jax
import jax.numpy as jnp


def keep_sin(prim, *_, **params):
    return str(prim) == "sin"


run = jax.checkpoint(jnp.sin, policy=keep_sin)

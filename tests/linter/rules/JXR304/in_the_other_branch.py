import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name


def block(w, x, named):
    y = x @ w
    if named:
        z = checkpoint_name(y, "a")
    else:
        z = jnp.sin(y)
    return jnp.sin(z)

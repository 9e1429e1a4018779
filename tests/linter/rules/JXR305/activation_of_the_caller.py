import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name


def block(w, v, x, act):
    h = checkpoint_name(act(x @ w), "a")
    return jnp.sin(h @ v)

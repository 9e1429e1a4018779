import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name


def block(w, x):
    y = x @ w
    z = checkpoint_name(y, "a")
    return jnp.sin(z).reshape(y.shape).astype(y.dtype) + len(y) + jnp.zeros_like(y)

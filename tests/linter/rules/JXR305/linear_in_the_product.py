import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name


def block(w, v, x):
    h = checkpoint_name(-(x @ w), "a")
    g = checkpoint_name(jnp.negative(x @ v), "b")
    return jnp.sin(h @ v) + jax.nn.identity(g)

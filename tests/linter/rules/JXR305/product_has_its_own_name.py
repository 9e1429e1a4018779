import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name


def block(w, v, x):
    y = checkpoint_name(x @ w, "pre")
    h = checkpoint_name(jax.nn.relu(y), "post")
    return jnp.sin(h @ v)

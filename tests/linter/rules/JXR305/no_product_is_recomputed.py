import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name


def block(w, x):
    h = checkpoint_name(jax.nn.relu(x), "a")
    return jnp.sin(h @ w)

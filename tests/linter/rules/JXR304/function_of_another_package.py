import jax.numpy as jnp
from orbax.checkpoint.utils import checkpoint_name


def save(w, x):
    y = x @ w
    z = checkpoint_name(y, "a")
    return jnp.sin(y), z

#: To bind it here would make another variable of it.
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name


def block(w, x):
    y = x @ w

    def inner(z):
        checkpoint_name(y, "a")  # !
        return jnp.sin(y) * z

    return inner(x)

#: The users of this library write it.
from jax.ad_checkpoint import checkpoint_name


def block(w, x):
    return checkpoint_name(x @ w, "hidden") ** 2

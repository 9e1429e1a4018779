#: jax 0.9
import jax


def layer(f):
    return jax.checkpoint(f, concrete=False)

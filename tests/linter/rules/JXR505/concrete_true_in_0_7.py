#: jax 0.7
import jax


def layer(f):
    return jax.checkpoint(f, concrete=True)  # !

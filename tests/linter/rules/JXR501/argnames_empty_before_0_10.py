#: jax 0.9
import jax


def wrap(f):
    return jax.checkpoint(f, static_argnames=())  # !

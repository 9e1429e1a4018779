import jax


def wrap(f, names):
    try:
        return jax.checkpoint(f, static_argnames=names)
    except TypeError:
        return f

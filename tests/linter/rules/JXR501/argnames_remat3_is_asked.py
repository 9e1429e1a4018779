import jax


def wrap(f):
    if jax.config.jax_remat3:
        return jax.checkpoint(f, static_argnames='train')
    return f

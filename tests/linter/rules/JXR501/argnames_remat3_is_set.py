import jax

jax.config.update('jax_remat3', True)


def wrap(f):
    return jax.checkpoint(f, static_argnames='train')

import jax


def wrap(f, **options):
    return jax.checkpoint(f, **options)

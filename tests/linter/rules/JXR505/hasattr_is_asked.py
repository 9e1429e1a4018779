import jax


def wrap(f):
    if hasattr(jax, 'new_checkpoint'):
        return jax.new_checkpoint(f)
    return jax.checkpoint(f)

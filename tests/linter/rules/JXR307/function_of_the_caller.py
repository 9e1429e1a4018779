import jax


def directory(checkpoint_name, step):
    return checkpoint_name(step)

import jax
from orbax.checkpoint.path import checkpoint_name


def directory(step):
    return checkpoint_name("ckpt", step)

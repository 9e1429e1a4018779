import jax
from trainer.files import checkpoint_name


def save(step):
    checkpoint_name(step, "params")

import jax


def policy():
    return jax.checkpoint_policies.dots_saveable

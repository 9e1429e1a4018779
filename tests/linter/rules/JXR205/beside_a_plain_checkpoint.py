import jax

cp = jax.checkpoint_policies


def wrap(layer, save):
    if save:
        return jax.checkpoint(layer, policy=cp.everything_saveable)
    return jax.checkpoint(layer)

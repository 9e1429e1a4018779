import jax

cp = jax.checkpoint_policies


@jax.checkpoint
def block(layer, w, x):
    return jax.checkpoint(layer, policy=cp.nothing_saveable)(w, x)

import jax

cp = jax.checkpoint_policies


@jax.checkpoint
def stack(ws, x):
    for w in ws:
        x = jax.checkpoint(jax.numpy.dot, policy=cp.dots_saveable)(x, w)
    return x

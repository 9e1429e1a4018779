import jax

cp = jax.checkpoint_policies


@jax.checkpoint
def stack(layer, ws, x):
    step = jax.checkpoint(layer, policy=cp.dots_saveable)
    for w in ws:
        x = step(w, x)
    return x

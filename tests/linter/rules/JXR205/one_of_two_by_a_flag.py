import jax

cp = jax.checkpoint_policies


def run(layer, w, x, save):
    policy = cp.everything_saveable if save else cp.nothing_saveable
    x = jax.checkpoint(layer, policy=policy)(w, x)
    return jax.checkpoint(layer, policy=cp.everything_saveable if save else None)(w, x)

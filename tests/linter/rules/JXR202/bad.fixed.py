import jax


def run(layer, w, x, policy=jax.checkpoint_policies.nothing_saveable):
    return jax.checkpoint(layer, policy=policy)(w, x)

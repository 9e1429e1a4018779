import jax


def choose(cp, layer):
    return jax.checkpoint(layer, policy=cp.save_only_these_names)

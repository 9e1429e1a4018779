import jax


def keep(kind):
    if kind == "dots":
        return jax.checkpoint_policies.dots_saveable
    return None


def run(layer, w, x):
    return jax.checkpoint(layer, policy=keep("dots"))(w, x)

import jax

POLICIES = {"full": None, "dots": jax.checkpoint_policies.dots_saveable}


def block(layer, name):
    if name not in POLICIES:
        raise ValueError(name)
    return jax.checkpoint(layer, policy=POLICIES.get(name))

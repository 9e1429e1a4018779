import jax


def block(layer, name):
    policy = getattr(jax.checkpoint_policies, name, None)
    if not policy:
        raise ValueError(name)
    named = getattr(jax.checkpoint_policies, "save_" + name, None) or policy
    return jax.checkpoint(layer, policy=named)

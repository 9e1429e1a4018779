import jax

POLICY = jax.checkpoint_policies.everything_saveable


def run(layer, w, x):
    return jax.checkpoint(layer, policy=POLICY)(w, x)

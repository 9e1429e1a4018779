import orbax.checkpoint as ocp

import jax


@ocp.checkpoint
def block(layer, w, x):
    return jax.checkpoint(layer, policy=jax.checkpoint_policies.dots_saveable)(w, x)

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

policy = jax.checkpoint_policies.save_only_these_names("out")


def layer(w, x):
    return checkpoint_name(jnp.sin(x @ w), "out")


single = jax.checkpoint(layer, policy=policy)

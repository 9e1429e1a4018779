import jax.ad_checkpoint
import jax.numpy as jnp

tag = jax.ad_checkpoint.checkpoint_name


def block(w, x, names):
    tag(x @ w, names[0])  # !
    return jnp.sin(x @ w)

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name


def layer(w, x):
    h = jnp.sin(x @ w)
    return checkpoint_name(jnp.sin(h @ w), "out")  # !


layer = jax.checkpoint(
    layer, policy=jax.checkpoint_policies.save_only_these_names("out")
)


def loss(ws, x):
    for w in ws:
        x = layer(w, x)
    return jnp.sin(x).sum()

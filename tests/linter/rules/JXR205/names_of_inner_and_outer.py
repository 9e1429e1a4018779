import functools

import jax
import jax.numpy as jnp
from jax import checkpoint as ckpt
from jax.ad_checkpoint import checkpoint_name, checkpoint_policies


@functools.partial(ckpt, policy=checkpoint_policies.save_only_these_names("inner"))  # !
def layer(w, x):
    return jnp.sin(checkpoint_name(jnp.sin(x @ w), "inner"))


@functools.partial(ckpt, policy=checkpoint_policies.save_only_these_names("outer"))
def block(w, x):
    return jnp.cos(checkpoint_name(jnp.cos(layer(w, x) @ w), "outer"))

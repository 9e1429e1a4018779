import functools

import jax.numpy as jnp
from jax import ad_checkpoint as adc
from jax import checkpoint_policies as cp
from jax import remat as ckpt


@functools.partial(
    ckpt,
    policy=cp.save_and_offload_only_these_names(
        names_which_can_be_saved=["hidden"],
        names_which_can_be_offloaded=[],
        offload_src="device",
        offload_dst="pinned_host",
    ),
)
def block(w, x):
    h = adc.checkpoint_name(x @ w, name="hidden")
    y = adc.checkpoint_name(jnp.sin(h) @ w, name="hidden_2")  # !
    return jnp.sin(y)

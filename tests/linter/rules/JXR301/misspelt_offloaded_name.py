import functools

import jax
import jax.numpy as jnp
from jax import checkpoint_policies as cp
from jax import remat as ckpt
from jax.ad_checkpoint import checkpoint_name


@functools.partial(
    ckpt,
    policy=cp.save_and_offload_only_these_names(
        names_which_can_be_saved=["hidden"],
        names_which_can_be_offloaded=["out", "hiden"],  # !
        offload_src="device",
        offload_dst="pinned_host",
    ),
)
def block(w, x):
    h = checkpoint_name(x @ w, "hidden")
    y = checkpoint_name(jnp.sin(h) @ w, "out")
    return jnp.sin(y)

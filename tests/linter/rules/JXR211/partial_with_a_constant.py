from functools import partial

from jax.ad_checkpoint import checkpoint_policies

HOST = "pinned-host"
offload = partial(
    checkpoint_policies.save_and_offload_only_these_names,
    offload_src="device",
    offload_dst=HOST,  # !
)

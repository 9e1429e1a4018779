from functools import partial

from jax.ad_checkpoint import checkpoint_policies as cp

NAME = "hidden"
offload = cp.save_and_offload_only_these_names
make = partial(
    offload,
    names_which_can_be_saved=[],
    offload_src="device",
)
policy = offload(
    names_which_can_be_saved=[],
    names_which_can_be_offloaded=NAME,  # !
    offload_src="device",
    offload_dst="pinned_host",
)

import jax

policy = jax.checkpoint_policies.save_and_offload_only_these_names(
    names_which_can_be_saved=["hidden"],
    names_which_can_be_offloaded=("out",),
    offload_src="device",
    offload_dst="pinned_host",
)

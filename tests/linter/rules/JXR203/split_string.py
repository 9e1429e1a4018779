import jax

NAMES = "attn mlp".split()
policy = jax.checkpoint_policies.save_and_offload_only_these_names(
    names_which_can_be_saved=NAMES,
    names_which_can_be_offloaded=list(),
    offload_src="device",
    offload_dst="pinned_host",
)

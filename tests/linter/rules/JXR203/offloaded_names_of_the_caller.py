import jax


def kept(saved, config):
    return jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=saved,
        names_which_can_be_offloaded=config.offloaded,
        offload_src="device",
        offload_dst="pinned_host",
    )

import jax


def policy(config, on_cpu):
    cp = jax.checkpoint_policies
    kind = "device" if on_cpu else "pinned_host"
    return cp.offload_dot_with_no_batch_dims("device", kind), cp.offload_dot_with_no_batch_dims(
        config.src, config.dst
    )

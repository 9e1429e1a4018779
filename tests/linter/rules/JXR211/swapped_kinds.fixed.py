import jax

policy = jax.checkpoint_policies.offload_dot_with_no_batch_dims(
    "device",
    "pinned_host",
)

import jax

policy = jax.checkpoint_policies.offload_dot_with_no_batch_dims(
    "pinned_host",  # !
    "device",  # !
)

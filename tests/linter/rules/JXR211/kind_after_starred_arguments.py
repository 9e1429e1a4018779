import jax


def policy(first):
    return jax.checkpoint_policies.offload_dot_with_no_batch_dims(*first, "pinned-host")

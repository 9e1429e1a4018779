#: jax 0.6
import jax

policy = jax.checkpoint_policies.offload_dot_with_no_batch_dims("device", "unpinned_host")

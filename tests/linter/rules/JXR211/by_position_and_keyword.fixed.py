from jax import checkpoint_policies as cp

first = cp.offload_dot_with_no_batch_dims("device", 'pinned_host')
second = cp.offload_dot_with_no_batch_dims(offload_dst="pinned_host", offload_src='device')

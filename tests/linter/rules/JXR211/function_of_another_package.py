from policies import offload_dot_with_no_batch_dims

policy = offload_dot_with_no_batch_dims("gpu", "host")

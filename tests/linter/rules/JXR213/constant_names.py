import jax

NAMES = ("dots_saveable", "offload_dot_with_no_batch_dims")
POLICIES = {n: getattr(jax.checkpoint_policies, n, None) for n in NAMES}

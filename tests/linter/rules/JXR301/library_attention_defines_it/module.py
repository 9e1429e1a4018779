import jax

from model import block

policy = jax.checkpoint_policies.save_only_these_names("qkv_proj", "context")
layer = jax.checkpoint(block, policy=policy)

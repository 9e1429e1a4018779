import jax

from model import block
from zoo import make_kernel

kernel = make_kernel(residual_checkpoint_name="attn_out")
policy = jax.checkpoint_policies.save_only_these_names("qkv_proj", "attn_out")
layer = jax.checkpoint(block, policy=policy)

#: No name of the project is visible.
import jax
from zoo import block

policy = jax.checkpoint_policies.save_only_these_names("qkv_porj")
layer = jax.checkpoint(block, policy=policy)

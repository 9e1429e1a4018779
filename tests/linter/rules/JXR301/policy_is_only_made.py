import jax
import jax.numpy as jnp

policy = jax.checkpoint_policies.save_only_these_names("attn_out")
layer = jax.checkpoint(lambda w, x: jnp.sin(x @ w) @ w)

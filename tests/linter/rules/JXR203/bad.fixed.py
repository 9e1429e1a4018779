import jax

policy = jax.checkpoint_policies.save_only_these_names(*("attn", "mlp"))

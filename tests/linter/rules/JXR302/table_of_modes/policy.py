import jax

POLICY = jax.checkpoint_policies.save_only_these_names("hidden")

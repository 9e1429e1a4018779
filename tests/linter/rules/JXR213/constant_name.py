import jax

offload = getattr(jax.checkpoint_policies, "save_and_offload_only_these_names", None)

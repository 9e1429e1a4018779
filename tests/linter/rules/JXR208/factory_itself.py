import jax

factory = jax.checkpoint_policies.save_anything_except_these_names
NAMES = {"save_anything_except_these_names": factory}

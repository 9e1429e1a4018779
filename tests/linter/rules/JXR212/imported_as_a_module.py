import jax.checkpoint_policies as cp  # !

policy = cp.dots_saveable

import jax

cp = jax.checkpoint_policies
if hasattr(cp, "save_everything"):
    policy = cp.save_everything
other = cp.save_nothing if hasattr(cp, "save_nothing") else cp.nothing_saveable
third = hasattr(cp, "save_nothing") and cp.save_nothing

from jax import checkpoint_policies as cp

MAKERS = {"only": cp.save_only_these_names, "but": cp.save_any_names_but_these, "none": None}

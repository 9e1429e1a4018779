import jax
from jax.ad_checkpoint import checkpoint_name


def block(w, x):
    return checkpoint_name(x @ w, "output") ** 2


POLICY = jax.checkpoint_policies.save_any_names_but_these("logits")

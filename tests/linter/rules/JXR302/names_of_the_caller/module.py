import jax
from jax.ad_checkpoint import checkpoint_name


def block(w, x):
    return checkpoint_name(x @ w, "output") ** 2


def make(names):
    return jax.checkpoint_policies.save_only_these_names(*names)

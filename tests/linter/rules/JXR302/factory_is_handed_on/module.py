import jax
from jax.ad_checkpoint import checkpoint_name

FACTORIES = {
    "these": jax.checkpoint_policies.save_only_these_names,
}


def block(w, x):
    return checkpoint_name(x @ w, "output") ** 2

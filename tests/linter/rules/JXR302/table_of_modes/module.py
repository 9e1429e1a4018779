from jax.ad_checkpoint import checkpoint_name

MODES = {"minimal": [], "full": ["output"]}


def block(w, x):
    return checkpoint_name(x @ w, "output") ** 2

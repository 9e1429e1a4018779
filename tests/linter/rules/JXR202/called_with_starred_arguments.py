import jax

cp = jax.checkpoint_policies


def run(layer, w, x, arguments):
    kept = cp.dots_saveable(*arguments)
    return jax.checkpoint(layer, policy=cp.save_only_these_names())(w, x), kept

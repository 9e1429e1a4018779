import jax


def keep(prim, lhs, rhs=None, **params):
    return lhs.ndim > 1


def run(layer, w, x):
    return jax.checkpoint(layer, policy=keep)(w, x)

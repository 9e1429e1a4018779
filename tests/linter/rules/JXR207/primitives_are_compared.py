import jax
from jax.extend.core.primitives import dot_general_p, exp_p


def keep(prim, *args, **params):
    return prim is dot_general_p or prim in (exp_p,)


def run(layer, w, x):
    return jax.checkpoint(layer, policy=keep)(w, x)

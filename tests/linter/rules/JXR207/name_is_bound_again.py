import jax

cp = jax.checkpoint_policies


def keep(prim, *args, **params):
    prim = prim.name
    return prim == "dot_general" or cp.dots_saveable(prim, *args, **params)


def run(layer, w, x):
    return jax.checkpoint(layer, policy=keep)(w, x)

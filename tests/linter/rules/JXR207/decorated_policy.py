import jax
from policies import adapted


@adapted
def keep(prim):
    return prim == "dot_general"


def run(layer, w, x):
    return jax.checkpoint(layer, policy=keep)(w, x)

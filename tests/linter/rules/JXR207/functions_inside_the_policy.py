import jax


def keep(prim, *args, **params):
    def wanted(prim):
        return prim == "dot_general"

    def nothing():
        return None

    return wanted(prim.name) or nothing() is not None


def run(layer, w, x):
    return jax.checkpoint(layer, policy=keep)(w, x)

import jax


def keep(*args, **params):
    if args[0] == "dot_general":
        raise ValueError
    return False


def run(layer, w, x):
    return jax.checkpoint(layer, policy=keep)(w, x)

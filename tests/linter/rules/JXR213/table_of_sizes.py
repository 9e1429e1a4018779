import jax

SIZES = {"small": None, "large": 8}


def block(layer, name):
    return jax.checkpoint(layer), SIZES.get(name)

import jax

WANTED = ["dot_general"]


def matmuls(prim, *args, **params):
    dots = prim.name in WANTED
    return dots or "conv" in prim.name


def run(layer, w, x):
    return jax.remat(layer, policy=matmuls)(w, x)

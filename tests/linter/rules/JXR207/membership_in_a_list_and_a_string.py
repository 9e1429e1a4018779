import jax

WANTED = ["dot_general"]


def matmuls(prim, *args, **params):
    dots = prim in WANTED  # !
    return dots or "conv" in prim  # !


def run(layer, w, x):
    return jax.remat(layer, policy=matmuls)(w, x)

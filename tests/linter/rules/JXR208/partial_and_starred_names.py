from functools import partial

from jax import checkpoint_policies as cp
from jax import remat as ckpt

but = cp.save_anything_except_these_names
make = partial(but, "hidden")  # !


def run(layer, w, x, names):
    return ckpt(layer, policy=but(*names))(w, x)  # !

#: jax 0.10
from functools import partial

import jax


@partial(jax.remat, concrete=True)  # !
def layer(x, train):
    return x * 2 if train else x

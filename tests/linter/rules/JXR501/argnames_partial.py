from functools import partial

import jax


@partial(jax.remat, static_argnames=("train",))  # !
def layer(x, train):
    return x * 2 if train else x

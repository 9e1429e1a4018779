from functools import partial

import jax


@partial(jax.remat, static_argnums=(1,))
def layer(x, train):
    return x * 2 if train else x

import functools

import jax

keep_all = jax.checkpoint_policies.everything_saveable


@functools.partial(
    jax.remat,
    policy=keep_all,
)
def block(w, x):
    return jax.numpy.sin(x @ w)

import functools

import jax


@functools.partial(jax.checkpoint, policy=jax.checkpoint_policies.dots_saveable)
def layer(w, x):
    return jax.numpy.tanh(x @ w)

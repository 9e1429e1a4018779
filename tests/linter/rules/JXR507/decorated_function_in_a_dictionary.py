import functools

import jax


def layers(ws):
    found = {}
    for i, w in enumerate(ws):

        @functools.partial(jax.checkpoint, prevent_cse=False)  # !
        def layer(x):
            y = x @ w
            return y

        found[i] = layer
    return found

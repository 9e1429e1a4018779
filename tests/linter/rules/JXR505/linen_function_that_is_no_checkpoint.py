from functools import partial

import flax.linen as nn


def build(layer, flag):
    if flag:
        wrap = partial(nn.checkpoint_wrapper, concrete=True)
    else:
        wrap = lambda layer: layer
    return wrap(layer)

from functools import partial

import flax
import flax.linen as nn


def build(layer):
    if flax.__version__ < "0.6":
        wrap = partial(nn.remat, concrete=True)
    else:
        wrap = nn.remat
    return wrap(layer)

from functools import partial

import flax.linen as nn

from mylib import remat


def build(layer, flag):
    return partial(nn.remat if flag else remat, concrete=True)(layer)

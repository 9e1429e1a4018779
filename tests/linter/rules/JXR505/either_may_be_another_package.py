import flax.linen as nn

from mylib import remat


def build(layer, flag):
    wrap = nn.remat if flag else remat
    return wrap(layer, concrete=True)

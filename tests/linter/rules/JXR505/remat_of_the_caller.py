from functools import partial


def build(layer, remat, flag):
    wrap = partial(remat, concrete=True) if flag else remat
    return wrap(layer)

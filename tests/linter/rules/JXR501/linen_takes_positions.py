import flax.linen as nn


def wrap(Block):
    return nn.remat(Block, True, True, False, True, (2,))

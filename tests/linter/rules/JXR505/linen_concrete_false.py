import flax.linen as nn


def wrap(Block):
    return nn.remat(Block, concrete=False)

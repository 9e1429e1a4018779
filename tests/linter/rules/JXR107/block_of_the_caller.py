from flax import linen as nn


def block(Block):
    return nn.remat(Block)

import flax.linen as nn


def blocks(Attention, Mlp):
    return nn.remat(Attention), nn.remat(Mlp)

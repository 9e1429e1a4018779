import functools

import flax.linen as nn


@functools.partial(nn.remat, static_argnums=(2,))
class Block(nn.Module):
    def __call__(self, x, train):
        return x * 2 if train else x

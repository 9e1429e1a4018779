from flax import linen as nn


class Block(nn.Module):
    def __call__(self, x, train):
        return x * 2 if train else x


Wrapped = nn.remat(Block, static_argnames=("train",))  # !

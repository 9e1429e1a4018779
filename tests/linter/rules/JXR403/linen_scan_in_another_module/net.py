import flax.linen as nn
from module import Block


class Net(nn.Module):
    remat: bool = True

    @nn.compact
    def __call__(self, x):
        return nn.remat(nn.scan(Block, length=4))()(x)

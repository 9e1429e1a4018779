import flax.linen as nn
from module import Block


class Net(nn.Module):
    remat: bool = True

    @nn.compact
    def __call__(self, x):
        block = Block
        if self.remat:
            block = nn.remat(Block)
        return block()(block()(x))

import flax.linen as nn
from module import Block


class Stage(nn.Module):
    cfg: dict

    def setup(self):
        self.blocks = [Block(self.cfg) for _ in range(4)]

    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        return x

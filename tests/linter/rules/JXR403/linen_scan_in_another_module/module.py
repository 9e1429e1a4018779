import flax.linen as nn
from parts import Mlp


class Block(nn.Module):
    remat: bool = True

    @nn.compact
    def __call__(self, x):
        return x + nn.remat(Mlp, prevent_cse=False)()(x)

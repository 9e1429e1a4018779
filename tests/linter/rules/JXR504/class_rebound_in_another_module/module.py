#: The other module has two of the name.
import flax.linen as nn
from layers import Block


class Net(nn.Module):
    @nn.compact
    def __call__(self, x, deterministic: bool = False):
        return nn.remat(Block)()(x, deterministic)

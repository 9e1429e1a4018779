#: Nothing in the other module asks for its truth.
import flax.linen as nn
from layers import Block


class Net(nn.Module):
    @nn.compact
    def __call__(self, x, deterministic: bool = False):
        return nn.remat(Block)()(x, deterministic)

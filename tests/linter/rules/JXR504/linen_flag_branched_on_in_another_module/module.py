import flax.linen as nn
from layers import Block


class Net(nn.Module):
    @nn.compact
    def __call__(self, x, deterministic: bool = False):
        block = nn.remat(Block)  # !
        for _ in range(2):
            x = block()(x, deterministic)
        return x

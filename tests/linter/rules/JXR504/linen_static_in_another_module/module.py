import flax.linen as nn
from layers import Block


class Net(nn.Module):
    @nn.compact
    def __call__(self, x, deterministic: bool = False):
        return nn.remat(Block, static_argnums=(2,))()(x, deterministic)

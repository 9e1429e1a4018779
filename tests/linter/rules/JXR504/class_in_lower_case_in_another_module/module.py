import flax.linen as nn
from layers import block


class Net(nn.Module):
    @nn.compact
    def __call__(self, x, deterministic: bool = False):
        return nn.remat(block, static_argnums=(2,))()(x, deterministic)

import flax.linen as nn
from stages import Stage


class Net(nn.Module):
    cfg: dict

    @nn.compact
    def __call__(self, x):
        for _ in range(4):
            x = nn.remat(Stage)(self.cfg)(x)
        return x

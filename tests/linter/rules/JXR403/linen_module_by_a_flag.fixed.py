import flax.linen as nn


class Block(nn.Module):
    cfg: dict

    def setup(self):
        if self.cfg.remat:
            self.mlp = nn.remat(nn.MLP)(self.cfg)
        else:
            self.mlp = nn.MLP(self.cfg)

    def __call__(self, x):
        return x + self.mlp(x)


class Net(nn.Module):
    cfg: dict

    @nn.compact
    def __call__(self, x):
        block = Block
        if self.cfg.remat:
            block = nn.remat(Block)
        for _ in range(4):
            x = block(self.cfg)(x)
        return x

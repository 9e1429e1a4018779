import flax.linen as nn


class Block(nn.Module):
    cfg: dict

    def setup(self):
        if self.cfg.remat == "mlp":
            self.mlp = nn.remat(nn.MLP, prevent_cse=False)(self.cfg)
        else:
            self.mlp = nn.MLP(self.cfg)

    def __call__(self, x):
        return x + self.mlp(x)


class Net(nn.Module):
    cfg: dict

    @nn.compact
    def __call__(self, x):
        block = Block
        if self.cfg.remat == "block":
            block = nn.remat(Block)
        for _ in range(4):
            x = block(self.cfg)(x)
        return x

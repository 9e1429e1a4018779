import flax.linen as nn


class Block(nn.Module):
    cfg: dict

    def setup(self):
        self.mlp = nn.remat(nn.MLP, prevent_cse=False)(self.cfg)

    def __call__(self, x):
        return x + self.mlp(x)

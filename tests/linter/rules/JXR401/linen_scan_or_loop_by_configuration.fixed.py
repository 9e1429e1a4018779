import flax.linen as nn


class Trunk(nn.Module):
    cfg: dict
    block: type

    @nn.compact
    def __call__(self, x):
        block = nn.remat(self.block, prevent_cse=not self.cfg.scan_layers)
        if self.cfg.scan_layers:
            layers = nn.scan(block, {"params": 0}, length=self.cfg.depth)
            x, _ = layers(self.cfg)(x, None)
        else:
            for _ in range(self.cfg.depth):
                x, _ = block(self.cfg)(x, None)
        return x

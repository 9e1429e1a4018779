import flax.linen as nn


class Trunk(nn.Module):
    cfg: dict
    block: type

    @nn.compact
    def __call__(self, x):
        block = nn.remat(self.block, prevent_cse=not self.cfg.scan_layers)
        if self.cfg.scan_layers:
            x, _ = nn.scan(block, {"params": 0}, length=4)(self.cfg)(x, None)
        else:
            x, _ = block(self.cfg)(x, None)
        return x

import flax.linen as nn


class Block(nn.Module):
    @nn.compact
    def __call__(self, x, _):
        return x + nn.Dense(8)(nn.gelu(nn.Dense(32)(x))), None


class Net(nn.Module):
    scan: bool = True

    def setup(self):
        block = nn.remat(Block, prevent_cse=not self.scan)
        if self.scan:
            self.layers = nn.scan(
                block, variable_axes={"params": 0}, split_rngs={"params": True}, length=4
            )()
        else:
            self.blocks = [block() for _ in range(4)]

    def __call__(self, x):
        if self.scan:
            return self.layers(x, None)[0]
        for block in self.blocks:
            x, _ = block(x, None)
        return x

import flax.linen as nn


class Block(nn.Module):
    @nn.compact
    def __call__(self, x, deterministic: bool = True):
        y = nn.Dense(3)(x)
        return nn.Dropout(0.1)(y, deterministic=deterministic), None


class Trunk(nn.Module):
    def setup(self):
        block = nn.remat(Block, prevent_cse=False)  # !
        self.layers = nn.scan(
            block,
            variable_axes={"params": 0},
            split_rngs={"params": True, "dropout": True},
            in_axes=nn.broadcast,
            length=2,
        )()

    def __call__(self, x, deterministic: bool = True):
        x, _ = self.layers(x, deterministic)
        return x

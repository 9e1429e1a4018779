import flax.linen as nn


class Block(nn.Module):
    @nn.compact
    def __call__(self, x, _):
        return nn.gelu(nn.Dense(8)(nn.gelu(nn.Dense(8)(x)))), None


class Model(nn.Module):
    depth: int = 4
    scan_layers: bool = True

    @nn.compact
    def __call__(self, x):
        stack = nn.scan(
            nn.remat(Block),
            variable_axes={"params": 0},
            split_rngs={"params": True},
            length=self.depth,
            unroll=1 if self.scan_layers else self.depth,
        )
        return stack()(x, None)[0]

import flax.linen as nn


class Block(nn.Module):
    dropout: float = 0.1

    @nn.compact
    def __call__(self, x, deterministic=True):
        y = nn.Dense(8)(x)
        y = nn.Dropout(self.dropout)(y, deterministic)
        return x + y, {}


class Net(nn.Module):
    remat: bool = True

    @nn.compact
    def __call__(self, x, deterministic: bool = True):
        if self.remat:
            block = nn.remat(Block, prevent_cse=True, static_argnums=(2,))
        else:
            block = Block
        for i in range(2):
            x, _ = block(name=f"a{i}")(x, deterministic)
        return x

import flax.linen as nn


class Block(nn.Module):
    rate: float = 0.1

    def setup(self):
        self.dense = nn.Dense(8)
        self.dropout = nn.Dropout(self.rate)

    def __call__(self, x, deterministic):
        return self.dropout(self.dense(x), deterministic)


class Net(nn.Module):
    def setup(self):
        layers = []
        for i in range(3):
            layers.append(nn.remat(Block)(name=f"block_{i}"))  # !
        self.layers = layers

    def __call__(self, x, deterministic: bool = True):
        for i, layer in enumerate(self.layers):
            x = layer(x, deterministic)
        return x

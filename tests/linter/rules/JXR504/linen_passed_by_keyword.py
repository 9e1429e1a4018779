import flax.linen as nn


class Block(nn.Module):
    @nn.compact
    def __call__(self, x, mask, train: bool):
        y = nn.Dense(3)(x)
        return y * 2 if train else y


class Trunk(nn.Module):
    remat: bool = True

    def setup(self):
        block = Block
        if self.remat:
            block = nn.remat(block, static_argnums=(3,))  # !
        self.layers = [block(name=str(i)) for i in range(2)]

    def __call__(self, x, train):
        for layer in self.layers:
            x = layer(x, None, train=train)
        return x

import flax.linen as nn


class Block(nn.Module):
    @nn.compact
    def __call__(self, x, _):
        return nn.tanh(nn.Dense(8)(x)), None


class Trunk(nn.Module):
    @nn.compact
    def __call__(self, x):
        scanned = nn.scan(Block, {'params': 0}, {'params': True}, length=4)
        x, _ = nn.remat(scanned)(name='blocks')(x, None)  # !
        return x

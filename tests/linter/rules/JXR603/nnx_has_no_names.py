from flax import nnx as nn


class Block(nn.Module):
    def __call__(self, x):
        return x


def run(x, remat):
    call = nn.remat(Block.__call__) if remat else Block.__call__
    return call(Block(), x)

from torch.utils.checkpoint import checkpoint

from policies import cp


def run(layer, x):
    return checkpoint(layer, policy=cp.everything_saveable)(x)

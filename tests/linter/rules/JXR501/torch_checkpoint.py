from torch.utils.checkpoint import checkpoint


def loss(layer, x):
    return checkpoint(layer, x).sum()

from torch.utils.checkpoint import checkpoint


def run(f, x):
    return checkpoint(f, x)

from torch.utils import checkpoint_policies as cp


def run(checkpoint, layer):
    return checkpoint(layer, policy=cp.save_only_these_names)

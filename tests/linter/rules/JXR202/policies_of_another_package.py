from policies import checkpoint_policies as cp


def run(layer, w, x, remat):
    return remat(layer, policy=cp.nothing_saveable())(w, x)

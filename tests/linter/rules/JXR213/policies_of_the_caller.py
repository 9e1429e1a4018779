def block(layer, name, remat, checkpoint_policies):
    return remat(layer, policy=getattr(checkpoint_policies, name, None))

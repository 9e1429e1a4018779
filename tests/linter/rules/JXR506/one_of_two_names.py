from jax._src.ad_checkpoint import remat as ckpt, remat_p  # !


def wrap(f):
    return ckpt(f), remat_p

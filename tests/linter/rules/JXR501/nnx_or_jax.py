import jax
from flax import nnx


def make(use_nnx):
    remat = nnx.remat if use_nnx else jax.remat
    return remat(prevent_cse=False)

from functools import partial

from jax import remat as ckpt
from jax.checkpoint_policies import dots_saveable  # !

wrap = partial(ckpt, policy=dots_saveable)

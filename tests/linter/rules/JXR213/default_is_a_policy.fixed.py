import flax.linen as nn
from jax import checkpoint_policies as cp


class Model(nn.Module):
    block: type
    remat_policy: str = "nothing_saveable"

    @nn.compact
    def __call__(self, x):
        return nn.remat(
            self.block,
            policy=getattr(cp, self.remat_policy),
        )(name="block")(x)

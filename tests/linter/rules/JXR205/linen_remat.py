import flax.linen as nn
from jax.ad_checkpoint import checkpoint_policies


class Stack(nn.Module):
    @nn.compact
    def __call__(self, x):
        dense = nn.remat(
            nn.Dense,
            policy=checkpoint_policies.everything_saveable,  # !
        )
        return dense(8, name="dense")(x)

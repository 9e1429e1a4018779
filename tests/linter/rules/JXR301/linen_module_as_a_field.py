import flax.linen as nn
import jax


class Block(nn.Module):
    attend: object

    @nn.compact
    def __call__(self, x):
        return x + self.attend(nn.Dense(8)(x))


class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        policy = jax.checkpoint_policies.save_only_these_names("attn_out")
        return nn.remat(Block, policy=policy)(attend=nn.relu)(x)

#: Nothing is named at all, and the names of layers are no names of values.
import flax.linen as nn
import jax


class Block(nn.Module):
    @nn.compact
    def __call__(self, x):
        return x + nn.Dense(8)(nn.gelu(nn.Dense(32, name="up_proj")(x)))


class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        policy = jax.checkpoint_policies.save_only_these_names("up_proj")  # !
        return nn.remat(Block, policy=policy)(name="block")(x)

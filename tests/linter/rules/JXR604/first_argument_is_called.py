#: What calls its first argument may well get a module.
import flax.linen as nn


def twice(f, x):
    return f(f(x))


class Model(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.remat(twice)(nn.Dense(4), x)

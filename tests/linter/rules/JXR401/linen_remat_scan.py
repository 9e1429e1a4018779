#: It sets prevent_cse itself.
import flax.linen as nn


class Model(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.remat_scan(nn.Dense, lengths=(2, 2))(8)(x)

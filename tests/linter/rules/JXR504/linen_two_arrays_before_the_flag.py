import flax.linen as nn


class Cross(nn.Module):
    @nn.compact
    def __call__(self, x, u, deterministic=True):
        y = nn.Dense(8)(x + u)
        return nn.Dropout(0.1)(y, deterministic)


class Net(nn.Module):
    @nn.compact
    def __call__(self, x, u, deterministic: bool = True):
        cross = nn.remat(Cross, static_argnums=(2,))  # !
        return cross(name="cross")(x, u, deterministic)

import equinox as eqx


def layer(x, train):
    return x * 2 if train else x


def loss(x):
    return eqx.filter_checkpoint(layer)(x, True).sum()

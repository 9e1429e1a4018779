import equinox as eqx


def layer(x, train):
    return x * 2 if train else x


block = eqx.filter_checkpoint(layer, static_argnames="train")  # !

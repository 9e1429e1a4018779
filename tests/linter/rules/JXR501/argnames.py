import jax


def layer(x, train):
    return x * 2 if train else x


def loss(x):
    block = jax.checkpoint(layer, static_argnames="train")  # !
    return block(x, True).sum()

import jax


def layer(x, train):
    return x * 2 if train else x


def loss(x):
    return jax.checkpoint(layer)(x, train=True).sum()  # !

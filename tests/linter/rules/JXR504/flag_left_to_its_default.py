import jax


def layer(x, train=True):
    return x * 2 if train else x


def loss(x):
    return jax.checkpoint(layer)(x).sum()

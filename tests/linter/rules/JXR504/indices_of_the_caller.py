import jax


def layer(x, train):
    return x * 2 if train else x


def loss(x, indices):
    return jax.checkpoint(layer, static_argnums=indices)(x, train=True).sum()

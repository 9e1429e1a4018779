import jax


def layer(x, train):
    return x * 2 if train else x


def loss(x):
    block = jax.checkpoint(layer, static_argnums=(1,))
    return block(x, True).sum()

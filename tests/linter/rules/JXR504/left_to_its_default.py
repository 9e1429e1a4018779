import jax


def layer(x, train=True):
    return x * 2 if train else x


def loss(x):
    block = jax.remat(layer, static_argnums=(1,))  # !
    return block(x).sum()

import jax


def layer(x, scale):
    return x * 2 * scale


def loss(x):
    block = jax.checkpoint(layer)
    return block(x, scale=1.0).sum()

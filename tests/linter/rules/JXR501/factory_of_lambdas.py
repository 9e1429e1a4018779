import jax


def make(scale):
    return lambda x: x * scale


def loss(x):
    return jax.checkpoint(make(2.0))(x).sum()

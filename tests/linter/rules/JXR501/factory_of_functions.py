import jax


def make(scale):
    def layer(x):
        return x * scale

    return layer


def loss(x):
    return jax.checkpoint(make(2.0))(x).sum()

from jax import checkpoint


def layer(x):
    return x * x


def loss(x):
    return checkpoint(layer, x).sum()  # !

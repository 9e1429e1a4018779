import jax


def layer(*args):
    return args[0]


def loss(x):
    return jax.checkpoint(layer, static_argnums=(3,))(x, 1, 2, True).sum()

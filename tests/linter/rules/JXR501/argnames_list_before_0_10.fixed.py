import jax


def layer(x, train):
    return x * 2 if train else x


block = jax.checkpoint(layer, static_argnums=(1,))

import jax


def layer(x, train):
    return x * 2 if train else x


from functools import partial


def loss(x):
    f = partial(layer, x)
    return jax.checkpoint(f, static_argnums=(0,))(True)

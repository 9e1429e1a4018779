import jax


def layer(x, train):
    return x * 2 if train else x


f = jax.jit(layer, static_argnums=[1])
g = jax.jit(layer, static_argnums=(5,))

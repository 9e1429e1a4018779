import jax


def activation(name):
    return getattr(jax.nn, name)


def loss(x):
    return jax.checkpoint(activation('relu'))(x)

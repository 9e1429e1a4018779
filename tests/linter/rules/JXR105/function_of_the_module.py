import jax


def block(x):
    return x * x


def loss(x):
    jax.checkpoint(block)  # !
    return block(x).sum()

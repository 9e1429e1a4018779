import jax


def layer(w, x):
    return jax.numpy.tanh(x @ w)


def loss(w, x):
    block = jax.checkpoint(layer, jax.checkpoint_policies.dots_saveable)  # !
    return block(w, x).sum()

import jax


@jax.checkpoint
def rate(t, state, shear):
    return jax.numpy.tanh(state) * shear


@jax.checkpoint  # !
def at_rest(t, state):
    return rate(t, state, 0.0)

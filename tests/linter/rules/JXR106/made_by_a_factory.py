import jax


def build(width):
    def rate(t, state, shear):
        return jax.numpy.tanh(state * width) * shear

    return jax.checkpoint(rate)


def relaxation(width):
    rate = build(width)

    def at_rest(t, state):
        return rate(t, state, 0.0)

    return jax.checkpoint(at_rest)  # !

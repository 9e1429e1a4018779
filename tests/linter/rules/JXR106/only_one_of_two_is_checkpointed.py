import jax


def build(f, remat):
    if remat:
        return jax.checkpoint(f)
    return f


def relaxation(f):
    rate = build(f, True)
    return jax.checkpoint(lambda state: rate(state, 0.0))

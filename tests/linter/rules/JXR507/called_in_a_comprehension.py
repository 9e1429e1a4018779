import jax


def model(ws, x):
    return [jax.checkpoint(lambda x: x @ w)(x) for w in ws]

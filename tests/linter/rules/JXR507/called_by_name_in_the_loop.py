import jax


def model(ws, x):
    for w in ws:
        block = jax.checkpoint(lambda x: x @ w)
        x = block(x)
    return x

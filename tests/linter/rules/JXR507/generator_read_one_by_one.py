import jax


def model(ws, x):
    for block in (jax.checkpoint(lambda x: x @ w) for w in ws):
        x = block(x)
    return x

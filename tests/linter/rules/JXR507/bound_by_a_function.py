import jax


def bound(w):
    return jax.checkpoint(lambda x: x @ w)


def layers(ws):
    return [bound(w) for w in ws]

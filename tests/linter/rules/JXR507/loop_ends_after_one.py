import jax


def first(ws):
    found = []
    for w in ws:
        if w.ndim == 2:
            found.append(jax.checkpoint(lambda x: x @ w))
            break
    return found

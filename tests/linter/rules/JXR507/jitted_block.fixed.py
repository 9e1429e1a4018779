import jax


def layers(ws):
    found = []
    for i in range(len(ws)):
        w = ws[i]
        block = jax.checkpoint(lambda x, w=w: x @ w)
        found.append(jax.jit(block))
    return found

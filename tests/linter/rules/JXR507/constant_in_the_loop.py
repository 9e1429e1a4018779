import jax


def layers(ws):
    found = []
    for w in ws:
        scale = 2.0

        @jax.checkpoint
        def layer(w, x):
            y = x @ w
            return y * scale

        found.append(layer)
    return found

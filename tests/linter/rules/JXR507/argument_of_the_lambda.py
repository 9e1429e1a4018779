import jax


def layers(ws, scale):
    return [jax.checkpoint(lambda w, x: x @ w * scale) for _ in ws]

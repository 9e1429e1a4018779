import jax


def run(layer, w, x):
    return jax.checkpoint(layer, policy=lambda p, *_, **__: str(p) in {"dot_general"})(w, x)

import jax


def layers(ws):
    return {i: jax.jit(jax.checkpoint(lambda x, w=w: x @ w))
            for i, w in enumerate(ws)}

import jax


def step(c, w):
    return c * w, None


@jax.checkpoint
def chunk(c, ws):
    return jax.lax.scan(step, c, ws)


def loss(stages, x):
    for ws in stages:
        x, _ = chunk(x, ws)
    return x.sum()

import jax


def step(c, w):
    return c * w, None


@jax.checkpoint
def run(c, ws):
    return jax.lax.scan(step, c, ws)


def loss(a, b, x):
    x, _ = run(x, a)
    x, _ = run(x, b)
    return x.sum()

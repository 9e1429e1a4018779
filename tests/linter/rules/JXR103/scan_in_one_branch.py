import jax


def step(c, w):
    return jax.nn.gelu(c @ w), None


@jax.checkpoint
def trunk(ws, x, deep):
    return jax.lax.scan(step, x, ws)[0] if deep else jax.nn.gelu(x)


def loss(ws, x):
    return trunk(ws, x, True).sum()

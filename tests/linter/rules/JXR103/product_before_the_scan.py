import jax


def step(c, w):
    return jax.nn.gelu(c @ w), None


@jax.checkpoint
def trunk(first, ws, x):
    x = x @ first
    return jax.lax.scan(step, x, ws)[0]


def loss(first, ws, x):
    return trunk(first, ws, x).sum()

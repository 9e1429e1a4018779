import jax


def step(c, w):
    return jax.nn.gelu(c @ w), None


@jax.checkpoint
def trunk(first, ws, x):
    x = jax.nn.gelu(x @ first)
    out, _ = jax.lax.scan(step, x, ws)
    return out


def loss(first, ws, x):
    return trunk(first, ws, x).sum()

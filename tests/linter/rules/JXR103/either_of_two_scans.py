import jax


def up(c, w):
    return jax.nn.gelu(c @ w), None


def down(c, w):
    return jax.nn.gelu(c @ w.T), None


@jax.checkpoint  # !
def trunk(ws, x, flip):
    return jax.lax.scan(down, x, ws)[0] if flip else jax.lax.scan(up, x, ws)[0]


def loss(ws, x):
    return trunk(ws, x, True).sum()

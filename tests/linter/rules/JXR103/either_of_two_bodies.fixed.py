import jax


def up(c, w):
    return jax.nn.gelu(c @ w), None


def down(c, w):
    return jax.nn.gelu(c @ w.T), None


def loss(ws, x, flip):
    run = lambda x: jax.lax.scan(jax.checkpoint(down if flip else up, prevent_cse=False), x, ws)
    return run(x)[0].sum()

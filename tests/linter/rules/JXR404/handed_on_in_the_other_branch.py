import jax


def layer(x, w):
    return jax.nn.gelu(jax.nn.gelu(x @ w) @ w), None


def trunk(ws, x, scan, give):
    body = jax.checkpoint(layer)
    if scan:
        return jax.lax.scan(body, x, ws)[0]
    return give(body, ws, x)

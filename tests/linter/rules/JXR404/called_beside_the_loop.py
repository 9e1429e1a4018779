import jax


def layer(x, w):
    return jax.nn.gelu(jax.nn.gelu(x @ w) @ w), None


def trunk(ws, x, deep):
    body = jax.checkpoint(layer)
    x, _ = body(x, ws[0])
    if deep:
        x, _ = jax.lax.scan(body, x, ws[1:])
    return x

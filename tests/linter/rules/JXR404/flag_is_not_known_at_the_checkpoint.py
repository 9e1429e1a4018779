import jax


def layer(x, w):
    return jax.nn.gelu(jax.nn.gelu(x @ w) @ w), None


body = jax.checkpoint(layer)


def trunk(ws, x, unrolled):
    if not unrolled:
        return jax.lax.scan(body, x, ws)[0]
    for w in ws:
        x, _ = body(x, w)
    return x

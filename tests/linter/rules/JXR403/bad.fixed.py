import jax
import jax.numpy as jnp


def layer(w, x):
    return jnp.sin(jnp.tanh(x @ w) @ w)


def pair(x, ws):
    inner = jax.checkpoint(layer)
    for w in ws:
        x = inner(w, x)
    return x, None


def loss(ws, x):
    body = jax.checkpoint(pair, prevent_cse=False)
    return jnp.sum(jax.lax.scan(body, x, ws)[0])

import jax
import jax.numpy as jnp


def layer(w, x):
    return jnp.sin(jnp.tanh(x @ w) @ w)


def group(x, ws):
    for w in ws:
        x = jax.checkpoint(layer, prevent_cse=False)(w, x)
    return x, None


def loss(ws, x):
    x, _ = jax.lax.scan(group, x, ws)
    return jnp.sum(x**2)


def step(ws, x):
    return jax.value_and_grad(loss)(ws, x)

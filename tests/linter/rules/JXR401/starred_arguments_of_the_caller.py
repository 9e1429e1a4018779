import jax
import jax.numpy as jnp


def step(x, w):
    return jnp.sin(jnp.tanh(x @ w) @ w), None


def run(ws, x, unroll=6):
    body = jax.checkpoint(step, prevent_cse=False)
    return jax.lax.scan(body, x, ws, length=6, unroll=unroll)[0]


def loss(arguments):
    return jnp.sum(run(*arguments))

import jax
import jax.numpy as jnp


def layer(x, w):
    return jnp.sin(jnp.tanh(x @ w) @ w)


def step(w, x):
    def loss(w):
        return jnp.sum(jax.checkpoint(layer)(x, w))

    return w - jax.grad(loss)(w), None


def train(w, xs):
    return jax.lax.scan(step, w, xs)[0]

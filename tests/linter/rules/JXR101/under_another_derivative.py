import jax
import jax.numpy as jnp


def net(w, x):
    return jnp.tanh(jnp.tanh(x @ w) @ w)


def loss(w, x, y):
    return jnp.mean((jax.checkpoint(net)(w, x) - y) ** 2)


def adapted(w, x, y):
    return loss(w - jax.grad(loss)(w, x, y), x, y)


step = jax.grad(adapted)

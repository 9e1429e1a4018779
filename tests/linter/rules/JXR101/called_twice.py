import jax
import jax.numpy as jnp


def net(w, x):
    return jnp.tanh(jnp.tanh(x @ w) @ w)


def loss(w, x, y):
    wrapped = jax.checkpoint(net)
    return jnp.mean((wrapped(w, x) - wrapped(w, y)) ** 2)


step = jax.grad(loss)

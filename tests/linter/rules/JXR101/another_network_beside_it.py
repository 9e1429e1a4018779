import jax
import jax.numpy as jnp


def net(w, x):
    return jnp.tanh(jnp.tanh(x @ w) @ w)


def loss(w, target, x):
    return jnp.mean((jax.checkpoint(net)(w, x) - net(target, x)) ** 2)


step = jax.grad(loss)

import jax
import jax.numpy as jnp


def net(w, x):
    return jnp.tanh(jnp.tanh(x @ w) @ w)


def loss(w, x, head):
    return jnp.mean(jax.checkpoint(net)(w, x) @ head)


step = jax.grad(loss)

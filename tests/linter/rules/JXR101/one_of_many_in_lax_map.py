import jax
import jax.numpy as jnp


def net(w, x):
    return jnp.tanh(jnp.tanh(x @ w) @ w)


def loss(w, xs, y):
    def one(x):
        return jnp.mean((jax.checkpoint(net)(w, x) - y) ** 2)

    return jnp.sum(jax.lax.map(one, xs))


step = jax.grad(loss)

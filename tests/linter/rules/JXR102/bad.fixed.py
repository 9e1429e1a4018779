import jax
import jax.numpy as jnp


def trunk(w, x):
    return jnp.tanh(x @ w)


def head(w, h):
    return jnp.sin(h @ w).sum()


def loss(w, x):
    h = trunk(w, x)
    return head(w, h)


step = jax.jit(jax.value_and_grad(loss))

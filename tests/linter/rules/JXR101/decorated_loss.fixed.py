import jax
import jax.numpy as jnp


def loss(w, x):
    return jnp.tanh(x @ w).sum()


gradient = jax.jit(jax.grad(loss))

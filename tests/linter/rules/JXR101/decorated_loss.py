import jax
import jax.numpy as jnp


@jax.checkpoint  # !
def loss(w, x):
    return jnp.tanh(x @ w).sum()


gradient = jax.jit(jax.grad(loss))

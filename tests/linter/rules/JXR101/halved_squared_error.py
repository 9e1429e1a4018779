import jax
import jax.numpy as jnp


def net(w, x):
    return jnp.tanh(jnp.tanh(x @ w) @ w)


def step(w, x, batch):
    def loss(w):
        return jnp.sum(0.5 * (batch["y"] - jax.checkpoint(net)(w, x)) ** 2)  # !

    return jax.value_and_grad(loss)(w)

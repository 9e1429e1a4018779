import jax
import jax.numpy as jnp


@jax.remat  # !
def head(w, h):
    return jnp.sin(h @ w)


def step(w, x):
    def loss(w):
        h = jnp.tanh(x @ w)
        logits = head(w, h)
        return jnp.mean(logits)

    return jax.grad(loss)(w)

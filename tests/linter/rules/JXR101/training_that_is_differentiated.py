import jax
import jax.numpy as jnp


def loss(w, x):
    return jnp.sum(jnp.tanh(x @ w) ** 2)


def meta_loss(rate, w, tx, state, batches):
    def step(carry, batch):
        w, state = carry
        gradient = jax.grad(jax.checkpoint(loss))(w, batch)
        updates, state = tx.update(gradient, state)
        return (w + rate * updates, state), None

    (w, _), _ = jax.lax.scan(step, (w, state), batches)
    return loss(w, batches[0])


tune = jax.grad(meta_loss)

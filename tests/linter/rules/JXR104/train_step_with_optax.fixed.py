import jax
import optax


@jax.jit
def train_step(params, state, batch):
    def loss(params):
        return ((params - batch) ** 2).sum()

    value, grads = jax.value_and_grad(loss)(params)
    updates, state = optax.sgd(0.1).update(grads, state)
    return optax.apply_updates(params, updates), state, value

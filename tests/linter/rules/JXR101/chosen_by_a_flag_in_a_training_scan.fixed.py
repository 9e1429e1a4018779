import jax
import jax.numpy as jnp


def adam_step(params, moment, gradient):
    moment = 0.9 * moment + 0.1 * gradient
    return params - 1e-3 * moment, moment


def train(params, batches, remat=False):
    def step(state, x):
        def loss(w):
            h = jnp.tanh(x @ w)
            return jnp.mean(jnp.tanh(h @ w)), h

        chosen = loss
        (value, h), gradient = jax.value_and_grad(chosen, has_aux=True)(state[0])
        return adam_step(*state, gradient), value

    return jax.lax.scan(step, (params, jnp.zeros_like(params)), batches)

"""A training step of a multilayer perceptron with Optax's Adam, its arguments donated."""

import functools

import jax
import jax.numpy as jnp
import optax

LAYERS, WIDTH, BATCH = 8, 4096, 8192
adam = optax.adam(1e-3)


def loss(params, batch):
    x = batch
    for w in params:
        x = jax.nn.gelu(x @ w)
    return jnp.mean((x - batch) ** 2)


@functools.partial(jax.jit, donate_argnums=(0, 1))
def train_step(params, state, batch):
    value, gradients = jax.value_and_grad(loss)(params, batch)
    updates, state = adam.update(gradients, state, params)
    return optax.apply_updates(params, updates), state, value


def train_step_inputs():
    params = [jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)] * LAYERS
    state = jax.eval_shape(adam.init, params)
    return params, state, jax.ShapeDtypeStruct((BATCH, WIDTH), jnp.float32)

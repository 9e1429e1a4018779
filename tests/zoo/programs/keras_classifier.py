"""Keras 3 on JAX: layers under `RematScope`, trained with `stateless_call` and
`stateless_apply`, as in Keras' guide to custom training loops in JAX."""

import os

os.environ["KERAS_BACKEND"] = "jax"

import jax
import jax.numpy as jnp
import keras
from keras import layers

with keras.RematScope(mode="full"):
    inputs = layers.Input((32, 48))
    x = inputs
    for _ in range(2):
        h = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(4, 12)(h, h)
        h = layers.LayerNormalization()(x)
        h = layers.Dense(192, activation="gelu")(h)
        x = x + layers.Dense(48)(h)
    outputs = layers.Dense(10)(layers.GlobalAveragePooling1D()(x))
model = keras.Model(inputs, outputs)
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = keras.optimizers.Adam(1e-3)
optimizer.build(model.trainable_variables)


def compute_loss(trainable, non_trainable, x, y):
    logits, non_trainable = model.stateless_call(trainable, non_trainable, x, training=True)
    return loss_of(y, logits), non_trainable


@jax.jit
def train_step(state, data):
    trainable, non_trainable, optimizer_variables = state
    x, y = data
    grad_fn = jax.value_and_grad(compute_loss, has_aux=True)
    (loss, non_trainable), grads = grad_fn(trainable, non_trainable, x, y)
    trainable, optimizer_variables = optimizer.stateless_apply(
        optimizer_variables, grads, trainable
    )
    return loss, (trainable, non_trainable, optimizer_variables)


def compiled():
    trained = keras.Model(inputs, outputs)
    trained.compile(keras.optimizers.Adam(1e-3), loss_of)
    return trained


def _zeros(variables):
    return [jnp.zeros(v.shape, v.dtype) for v in variables]


def train_step_inputs():
    state = (
        _zeros(model.trainable_variables),
        _zeros(model.non_trainable_variables),
        _zeros(optimizer.variables),
    )
    return state, (jnp.zeros((8, 32, 48)), jnp.zeros((8,), jnp.int32))


def trees():
    (trainable, non_trainable, variables), data = train_step_inputs()
    return {"parameters": trainable, "others": (non_trainable, variables, data)}


def objective():
    (trainable, non_trainable, _), (x, y) = train_step_inputs()
    return lambda *args: compute_loss(*args)[0], (trainable, non_trainable, x, y)

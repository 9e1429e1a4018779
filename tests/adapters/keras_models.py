"""Models of Keras as a user might have written them, compiled, and a step written by hand."""

import jax
import keras
from keras import layers


class Net(keras.Model):
    def __init__(self, width):
        super().__init__()
        self.up = layers.Dense(width, activation="tanh")
        self.norm = layers.BatchNormalization()
        self.drop = layers.Dropout(0.3)
        self.down = layers.Dense(3)

    def call(self, x, training=False):
        return self.down(self.drop(self.norm(self.up(x), training=training), training=training))


def build():
    model = Net(16)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    return model


def own_loss(model, x, y):
    return abs(model(x, training=True) - y).sum()


def batch():
    return jax.ShapeDtypeStruct((4, 8), "float32"), jax.ShapeDtypeStruct((4,), "int32")


# What a person would write without an adapter: Keras' guide to custom loops in JAX.

model = build()
model._symbolic_build(data_batch=batch())  # as fit does
train_step = jax.jit(model.train_step, donate_argnums=0)


def train_step_inputs():
    groups = (
        model.trainable_variables,
        model.non_trainable_variables,
        model.optimizer.variables,
        model.metrics_variables,
    )
    state = tuple([jax.ShapeDtypeStruct(v.shape, v.dtype) for v in group] for group in groups)
    return state, batch()

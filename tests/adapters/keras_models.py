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


class Block(layers.Layer):
    def __init__(self, width):
        super().__init__()
        self.up = layers.Dense(4 * width, activation="gelu")
        self.down = layers.Dense(width)

    def call(self, x):
        return x + self.down(self.up(x))


def functional():
    x = inputs = keras.Input((64,))
    for _ in range(3):
        x = Block(64)(x)
    return keras.Model(inputs, layers.Dense(3)(x))


def sequential():
    dense = [layers.Dense(256, activation="gelu") for _ in range(4)]
    return keras.Sequential([*dense, layers.Dense(3)])


def models_in_a_model():
    x = inputs = keras.Input((64,))
    for i in range(3):
        inner = [layers.Dense(256, activation="gelu"), layers.Dense(64)]
        x = keras.Sequential([keras.Input((64,)), *inner], name=f"part_{i}")(x)
    return keras.Model(inputs, layers.Dense(3)(x))


def with_state():
    names = [layers.Dense(64), layers.BatchNormalization(), layers.Dropout(0.1)]
    return keras.Sequential([*names, layers.Dense(3)])


def normalized():
    norm = layers.Normalization(mean=0.5, variance=2.0)
    return keras.Sequential([keras.Input((8,)), norm, layers.Dense(3)])


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

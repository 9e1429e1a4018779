"""Equinox: an MLP mixer with each block under `eqx.filter_checkpoint`, in one jitted step."""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax


class Block(eqx.Module):
    tokens: eqx.nn.MLP
    channels: eqx.nn.MLP
    norm1: eqx.nn.LayerNorm
    norm2: eqx.nn.LayerNorm
    drop: eqx.nn.Dropout

    def __init__(self, patches, width, key):
        a, b = jax.random.split(key)
        self.tokens = eqx.nn.MLP(patches, patches, 128, depth=1, activation=jax.nn.gelu, key=a)
        self.channels = eqx.nn.MLP(width, width, 256, depth=1, activation=jax.nn.gelu, key=b)
        self.norm1 = eqx.nn.LayerNorm((width, patches))
        self.norm2 = eqx.nn.LayerNorm((width, patches))
        self.drop = eqx.nn.Dropout(0.1)

    def __call__(self, x, key):
        x = x + jax.vmap(self.tokens)(self.norm1(x))
        y = jax.vmap(self.channels)(self.norm2(x).T).T
        return x + self.drop(y, key=key)


class Mixer(eqx.Module):
    stem: eqx.nn.Conv2d
    blocks: list
    head: eqx.nn.Linear

    def __init__(self, key):
        a, b, *keys = jax.random.split(key, 4)
        self.stem = eqx.nn.Conv2d(3, 64, kernel_size=4, stride=4, key=a)
        self.blocks = [Block(64, 64, k) for k in keys]
        self.head = eqx.nn.Linear(64, 10, key=b)

    def __call__(self, image, key):
        x = self.stem(image).reshape(64, -1)
        for block, k in zip(self.blocks, jax.random.split(key, len(self.blocks)), strict=True):
            x = eqx.filter_checkpoint(block)(x, k)
        return self.head(x.mean(1))


optimizer = optax.adamw(1e-3)


def loss_fn(model, images, labels, key):
    keys = jax.random.split(key, images.shape[0])
    logits = jax.vmap(model)(images, keys)
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


@eqx.filter_jit
def train_step(model, opt_state, images, labels, key):
    loss, grads = eqx.filter_value_and_grad(loss_fn)(model, images, labels, key)
    updates, opt_state = optimizer.update(grads, opt_state, eqx.filter(model, eqx.is_array))
    return eqx.apply_updates(model, updates), opt_state, loss


def train_step_inputs():
    model = Mixer(jax.random.key(0))
    opt_state = optimizer.init(eqx.filter(model, eqx.is_array))
    images, labels = jnp.zeros((16, 3, 32, 32)), jnp.zeros((16,), jnp.int32)
    return model, opt_state, images, labels, jax.random.key(1)


def loss(model, images, labels, key):
    return loss_fn(model, images, labels, key)


def loss_inputs():
    model, _, *rest = train_step_inputs()
    return model, *rest


def trees():
    model, opt_state, *batch = train_step_inputs()
    return {
        "parameters": eqx.filter(model, eqx.is_array),
        "optimizer-state": opt_state,
        "batch": batch,
    }


def objective():
    model, *rest = loss_inputs()
    arrays, static = eqx.partition(model, eqx.is_inexact_array)
    return lambda arrays, *rest: loss_fn(eqx.combine(arrays, static), *rest), (arrays, *rest)

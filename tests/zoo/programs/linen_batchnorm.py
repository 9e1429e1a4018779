"""Flax linen: a small residual network with batch normalization, whose loss returns the new
statistics, as in Flax's imagenet example."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax.training import train_state


class Block(nn.Module):
    filters: int
    norm: Any

    @nn.compact
    def __call__(self, x):
        y = nn.Conv(self.filters, (3, 3), use_bias=False)(x)
        y = nn.relu(self.norm()(y))
        y = nn.Conv(self.filters, (3, 3), use_bias=False)(y)
        y = self.norm(scale_init=nn.initializers.zeros)(y)
        if x.shape != y.shape:
            x = nn.Conv(self.filters, (1, 1), use_bias=False)(x)
        return nn.relu(x + y)


class Net(nn.Module):
    @nn.compact
    def __call__(self, x, train=True):
        norm = partial(nn.BatchNorm, use_running_average=not train, momentum=0.9)
        for filters in (16, 16, 32):
            x = nn.checkpoint(Block)(filters, norm)(x)
        x = nn.max_pool(x, (2, 2), (2, 2))
        return nn.Dense(10)(x.mean((1, 2)))


class State(train_state.TrainState):
    batch_stats: Any


model = Net()


def loss(params, batch_stats, images, labels):
    logits, new = model.apply(
        {"params": params, "batch_stats": batch_stats}, images, mutable=["batch_stats"]
    )
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
    return loss, new["batch_stats"]


def train_step(state, batch):
    grad_fn = jax.value_and_grad(loss, has_aux=True)
    (value, stats), grads = grad_fn(state.params, state.batch_stats, batch["image"], batch["label"])
    return state.apply_gradients(grads=grads, batch_stats=stats), value


def train_step_inputs():
    batch = {"image": jnp.zeros((16, 16, 16, 3)), "label": jnp.zeros((16,), jnp.int32)}
    variables = model.init(jax.random.key(0), batch["image"])
    tx = optax.sgd(0.1, momentum=0.9, nesterov=True)
    state = State.create(
        apply_fn=model.apply,
        params=variables["params"],
        tx=tx,
        batch_stats=variables["batch_stats"],
    )
    return state, batch


def loss_inputs():
    state, batch = train_step_inputs()
    return state.params, state.batch_stats, batch["image"], batch["label"]


def trees():
    state, batch = train_step_inputs()
    return {
        "parameters": state.params,
        "optimizer-state": (state.opt_state, state.step),
        "batch": batch,
        "argument": state.batch_stats,
    }


def objective():
    return lambda *args: loss(*args)[0], loss_inputs()

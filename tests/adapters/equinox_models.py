"""Models of Equinox as a user might have written them."""

import equinox as eqx
import jax
import jax.numpy as jnp


class Net(eqx.Module):
    layers: list
    dropout: eqx.nn.Dropout
    table: jax.Array

    def __init__(self, width, layers=2, *, key):
        self.layers = [eqx.nn.Linear(width, width, key=k) for k in jax.random.split(key, layers)]
        self.dropout = eqx.nn.Dropout(0.5, inference=True)
        self.table = jnp.arange(width)

    def __call__(self, x, *, key=None, inference=None):
        for layer in self.layers:
            x = jnp.tanh(layer(x))
        return self.dropout(x * self.table, key=key, inference=inference)


def own_loss(model, x):
    return jnp.mean(jax.vmap(model)(x))


# What a person would write without an adapter.


def loss(params, table, x):
    layers = eqx.filter_eval_shape(lambda: Net(8, key=jax.random.key(0)))
    static = eqx.filter(layers, lambda leaf: not hasattr(leaf, "dtype"))
    model = eqx.combine(params, eqx.tree_at(lambda m: m.table, static, table, is_leaf=_is_none))
    return own_loss(model, x)


def _is_none(leaf):
    return leaf is None


def loss_inputs():
    net = Net(8, key=jax.random.key(0))
    return eqx.filter(net, eqx.is_inexact_array), net.table, jnp.zeros((4, 8))


class Normed(eqx.Module):
    first: eqx.nn.Linear
    norm: eqx.nn.BatchNorm
    last: eqx.nn.Linear

    def __init__(self, width, *, key):
        one, two = jax.random.split(key)
        self.first = eqx.nn.Linear(width, width, key=one)
        self.norm = eqx.nn.BatchNorm(width, axis_name="examples", mode="batch")
        self.last = eqx.nn.Linear(width, width, key=two)

    def __call__(self, x, state):
        x, state = self.norm(self.first(x), state)
        return self.last(jnp.tanh(x)), state


class Unnamed(Normed):
    def __call__(self, x, means):
        return super().__call__(x, means)


def stateful_loss(model, state, x):
    batched = jax.vmap(model, axis_name="examples", in_axes=(0, None), out_axes=(0, None))
    out, state = batched(x, state)
    return jnp.mean(out), state


def normed_loss(params, held, x):
    _, static = eqx.partition(normed()[0], eqx.is_inexact_array)
    return stateful_loss(eqx.combine(params, static), held, x)[0]


def normed():
    return eqx.nn.make_with_state(Normed)(8, key=jax.random.key(0))


def normed_loss_inputs():
    model, held = normed()
    return eqx.filter(model, eqx.is_inexact_array), held, jnp.zeros((4, 8))

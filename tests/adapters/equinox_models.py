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

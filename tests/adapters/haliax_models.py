"""Models of plain Haliax, as a user might have written them, and the loss without an adapter."""

import equinox as eqx
import haliax as hax
import haliax.nn as hnn
import jax

Embed, Mlp, Layers = hax.make_axes(embed=64, mlp=256, layers=4)


class Block(eqx.Module):
    up: hnn.Linear
    down: hnn.Linear

    @staticmethod
    def init(*, key):
        one, two = jax.random.split(key)
        return Block(hnn.Linear.init(Embed, Mlp, key=one), hnn.Linear.init(Mlp, Embed, key=two))

    def __call__(self, x):
        return x + self.down(hnn.gelu(self.up(x)))


class Net(eqx.Module):
    blocks: hnn.Stacked

    @staticmethod
    def init(*, key):
        return Net(hnn.Stacked.init(Layers, Block)(key=jax.random.split(key, Layers.size)))

    def __call__(self, x):
        return self.blocks.fold(x)


def build(key):
    return Net.init(key=key)


def own_loss(net, x):
    return hax.mean(net(x)).scalar()


# What a person would write without an adapter.


def loss(net, x):
    return hax.mean(net(hax.named(x, ("batch", "embed")))).scalar()


def loss_inputs():
    net = eqx.filter_eval_shape(build, jax.random.PRNGKey(0))
    return net, jax.ShapeDtypeStruct((2048, 64), "float32")

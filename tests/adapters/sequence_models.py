"""`Sequential`s of blocks and of a library's layers, as users make them."""

import equinox as eqx
import flax.linen as nn
import jax
from flax import nnx


class NnxBlock(nnx.Module):
    def __init__(self, *, rngs):
        self.up = nnx.Linear(64, 256, rngs=rngs)
        self.down = nnx.Linear(256, 64, rngs=rngs)

    def __call__(self, x):
        return x + self.down(nnx.gelu(self.up(x)))


class LinenBlock(nn.Module):
    @nn.compact
    def __call__(self, x):
        return x + nn.Dense(64)(nn.gelu(nn.Dense(256)(x)))


class EquinoxBlock(eqx.Module):
    up: eqx.nn.Linear
    down: eqx.nn.Linear

    def __init__(self):
        self.up = eqx.nn.Linear(64, 256, key=jax.random.key(0))
        self.down = eqx.nn.Linear(256, 64, key=jax.random.key(1))

    def __call__(self, x, *, key=None):
        return x + self.down(jax.nn.gelu(self.up(x)))


def nnx_blocks():
    rngs = nnx.Rngs(0)
    return nnx.Sequential(*(NnxBlock(rngs=rngs) for _ in range(4)))


def linen_blocks():
    return nn.Sequential([LinenBlock() for _ in range(4)])


def equinox_blocks():
    return eqx.nn.Sequential([EquinoxBlock() for _ in range(4)])


def nnx_layers():
    rngs = nnx.Rngs(0)
    layers = [(nnx.Linear(64, 64, rngs=rngs), nnx.gelu) for _ in range(4)]
    return nnx.Sequential(*(each for pair in layers for each in pair))

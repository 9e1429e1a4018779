"""Groups of layers of modules, written in their libraries' own checkpoints."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.advice.nested_code import folder, module
from tests.advice.test_groups import LAYERS, written

__all__ = ["folder"]

HEAD = "import jax\nimport jax.numpy as jnp\n"
EQUINOX = """\
import equinox as eqx


class Block(eqx.Module):
    up: eqx.nn.Linear
    down: eqx.nn.Linear
    drop: eqx.nn.Dropout

    def __init__(self, key):
        a, b = jax.random.split(key)
        self.up, self.down = eqx.nn.Linear(8, 32, key=a), eqx.nn.Linear(32, 8, key=b)
        self.drop = eqx.nn.Dropout(0.1)

    def __call__(self, x, key=None):
        h = jax.vmap(self.down)(jax.nn.gelu(jax.vmap(self.up)(x)))
        return x + self.drop(h, key=key)


class Net(eqx.Module):
    blocks: list

    def __call__(self, x):
        keys = jax.random.split(jax.random.key(1), len(self.blocks))
        for block, key in zip(self.blocks, keys):
            x = block(x, key=key)
        return x


def inputs(n):
    return Net([Block(k) for k in jax.random.split(jax.random.key(0), n)]), jnp.ones((4, 8))


def loss(net, x):
    return jnp.mean(net(x) ** 2)
"""
LINEN = """\
import flax.linen as nn


class Block(nn.Module):
    @nn.compact
    def __call__(self, x):
        h = nn.gelu(nn.Dense(32)(nn.LayerNorm()(x)))
        return x + nn.Dense(8)(h)


class Net(nn.Module):
    n: int

{body}

def inputs(n):
    x = jnp.ones((4, 8))
    return Net(n).init(jax.random.key(0), x), x


def loss(params, x):
    return jnp.mean(Net({n}).apply(params, x) ** 2)
"""
NNX = """\
from flax import nnx


class Block(nnx.Module):
    def __init__(self, rngs):
        self.up, self.down = nnx.Linear(8, 32, rngs=rngs), nnx.Linear(32, 8, rngs=rngs)
        self.calls = nnx.BatchStat(jnp.zeros(()))

    def __call__(self, x):
        self.calls.value = self.calls.value + 1
        return x + self.down(nnx.gelu(self.up(x)))


class Net(nnx.Module):
    def __init__(self, n, rngs):
        self.blocks = nnx.List([Block(rngs) for _ in range(n)])
        self.head = nnx.Linear(8, 3, rngs=rngs)

    def __call__(self, x):
        {loop}
        return self.head(x)


def inputs(n):
    return Net(n, nnx.Rngs(0)), jnp.ones((4, 8))


def loss(net, x):
    return jnp.mean(net(x) ** 2)
"""
SETUP = """\
    def setup(self):
        self.blocks = [Block() for _ in range(self.n)]

    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        return x
"""
COMPACT = """\
    @nn.compact
    def __call__(self, x):
        for i in range(self.n):
            x = Block(name=f"layer_{i}")(x)
        return x
"""
UNNAMED = """\
    @nn.compact
    def __call__(self, x):
        x = nn.Dense(8)(x)
        for _ in range(self.n):
            x = Block()(x)
        return nn.Dense(8)(x)
"""
LAYERS_OF_SELF = "for block in self.blocks:\n            x = block(x)"
BY_NUMBER = "for i in range(len(self.blocks)):\n            x = self.blocks[i](x)"
PROGRAMS = {
    "equinox": (EQUINOX, "eqx.filter_checkpoint(run_group)(start, x)"),
    "setup": (LINEN.format(body=SETUP, n=LAYERS), "nn.remat(run_group, static_argnums=1)("),
    "compact": (LINEN.format(body=COMPACT, n=LAYERS), "nn.remat(run_group, static_argnums=1)("),
    "unnamed": (LINEN.format(body=UNNAMED, n=LAYERS), "nn.remat(run_group, static_argnums=1)("),
    "nnx": (NNX.replace("{loop}", LAYERS_OF_SELF), "nnx.remat(run_group)(self.blocks[start"),
    "nnx by number": (
        NNX.replace("{loop}", BY_NUMBER),
        "nnx.remat(run_group, static_argnums=1)(self, start, x)",
    ),
}


def gradients(made, kind):
    net, x = made.inputs(LAYERS)
    if kind == "equinox":
        import equinox as eqx

        return eqx.filter_jit(eqx.filter_value_and_grad(made.loss))(net, x)
    if kind.startswith("nnx"):
        from flax import nnx

        found = nnx.jit(nnx.value_and_grad(made.loss))(net, x)
        return found, nnx.state(net, nnx.BatchStat)
    return jax.jit(jax.value_and_grad(made.loss))(net, x)


@pytest.mark.integration
@pytest.mark.parametrize("kind", PROGRAMS)
def test_groups_of_modules_keep_parameters_state_and_gradients(kind, folder):
    library = "equinox" if kind == "equinox" else "flax"
    pytest.importorskip(library)
    text, says = PROGRAMS[kind]
    original = module(folder, HEAD + text)
    new = written(original.loss, original.inputs(LAYERS), 3, bare=True)
    assert says in new
    again = module(folder, new)
    one, other = (jax.tree.leaves(made.inputs(LAYERS)) for made in (original, again))
    assert [jnp.shape(a) for a in one] == [jnp.shape(a) for a in other]
    want, got = gradients(original, kind), gradients(again, kind)
    assert jax.tree.structure(want) == jax.tree.structure(got) or kind == "equinox"
    for a, b in zip(jax.tree.leaves(want), jax.tree.leaves(got), strict=True):
        if hasattr(a, "dtype") and jnp.issubdtype(a.dtype, jnp.floating):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-5)

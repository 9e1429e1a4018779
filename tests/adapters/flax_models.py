"""Models of Flax as a user might have written them, with running means and dropout."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax import nnx


class Net(nnx.Module):
    def __init__(self, width, layers=2, *, rngs):
        self.layers = nnx.List([nnx.Linear(width, width, rngs=rngs) for _ in range(layers)])
        self.norm = nnx.BatchNorm(width, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        for layer in self.layers:
            x = jnp.tanh(layer(x))
        return self.dropout(self.norm(x))


class Linen(nn.Module):
    width: int
    layers: int = 2

    @nn.compact
    def __call__(self, x, train=True):
        for _ in range(self.layers):
            x = jnp.tanh(nn.Dense(self.width)(x))
        x = nn.BatchNorm(use_running_average=not train)(x)
        return nn.Dropout(0.5, deterministic=not train)(x)


class Decoder(nn.Module):
    """Attention over a cache, one token after the other."""

    def setup(self):
        self.attention = nn.MultiHeadDotProductAttention(2, qkv_features=8, decode=True)
        self.norm = nn.LayerNorm()

    def __call__(self, x):
        return self.attention(self.norm(x))

    def normalised(self, x):
        return self.norm(x)


def own_loss(model, x, y):
    return (jnp.abs(model(x) - y)).sum()


def with_aux(model, x):
    out = model(x)
    return out.sum(), {"out": out}


def no_loss():
    return 3


def schedule():
    return optax.sgd(0.1, momentum=0.9)


def net(width):
    return Net(width, rngs=nnx.Rngs(1))


# What a person would write without an adapter.


GRAPH, PARAMS, STATE = nnx.split(nnx.eval_shape(lambda: net(8)), nnx.Param, ...)


def nnx_loss(params, state, x):
    # Copied: what a function changes in its arguments counts as its output.
    params, state = jax.tree.map(lambda leaf: leaf, (params, state))
    return jnp.mean(nnx.merge(GRAPH, params, state)(x))


def nnx_loss_inputs():
    return PARAMS, STATE, jax.ShapeDtypeStruct((4, 8), jnp.float32)


def linen_loss(params, stats, rng, x):
    variables = {"params": params, "batch_stats": stats}
    out, _ = Linen(8).apply(variables, x, mutable=["batch_stats"], rngs={"dropout": rng})
    return jnp.mean(out)


def linen_loss_inputs():
    variables = Linen(8).init(jax.random.key(0), jnp.zeros((4, 8)), train=False)
    x = jnp.zeros((4, 8))
    return variables["params"], variables["batch_stats"], jax.random.key(0), x


# Parameters that are split over a mesh.


def split_init(*names):
    return nn.with_partitioning(nn.initializers.lecun_normal(), names)


class SplitLinen(nn.Module):
    @nn.compact
    def __call__(self, x):
        h = jnp.sin(nn.Dense(16, kernel_init=split_init(None, "model"))(x))
        return nn.Dense(8, kernel_init=split_init("model", None))(h)


class SplitNNX(nnx.Module):
    def __init__(self, *, rngs):
        def init(*names):
            return nnx.with_partitioning(nnx.initializers.lecun_normal(), names)

        self.up = nnx.Linear(8, 16, kernel_init=init(None, "model"), rngs=rngs)
        self.down = nnx.Linear(16, 8, kernel_init=init("model", None), rngs=rngs)

    def __call__(self, x):
        return self.down(jnp.sin(self.up(x)))


class Logical(nn.Module):
    @nn.compact
    def __call__(self, x):
        init = nn.with_logical_partitioning(nn.initializers.lecun_normal(), ("embed", "model"))
        return nn.Dense(16, kernel_init=init)(x)


DECODER = Decoder()
VARIABLES = jax.eval_shape(DECODER.init, jax.random.key(0), jnp.zeros((4, 32, 8)))


@functools.partial(jax.jit, donate_argnums=1)
def decoding(params, cache, x):
    return DECODER.apply({"params": params, "cache": cache}, x, mutable=["cache"])


def decoding_inputs():
    return VARIABLES["params"], VARIABLES["cache"], jax.ShapeDtypeStruct((4, 1, 8), jnp.float32)


def evaluating(params, stats, x):
    return Linen(8).apply({"params": params, "batch_stats": stats}, x, train=False)


def evaluating_inputs():
    params, stats, _, x = linen_loss_inputs()
    return params, stats, x

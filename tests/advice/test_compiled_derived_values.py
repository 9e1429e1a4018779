"""JXR834 against compilers: XLA's peak falls where a loop's body really makes the values again."""

import functools

import jax
import jax.numpy as jnp
import pytest
from peaks_by_xla import cases, peaks

L, N, D, HEADS = 8, 512, 1024, 8
BF16 = jnp.bfloat16


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def again(is_again):
    """Return what puts a function into a checkpoint, or leaves it as it is."""
    return functools.partial(jax.checkpoint, prevent_cse=False) if is_again else lambda fun: fun


def casts(is_again):
    @again(is_again)
    def product(x, w):
        return x @ w.astype(BF16)

    def body(x, w):
        return x + product(jnp.tanh(product(x, w["up"])), w["down"]), None

    def loss(ws, x):
        return jnp.sum(jax.lax.scan(body, x.astype(BF16), ws)[0].astype(jnp.float32) ** 2)

    return loss, ({"up": f32(L, D, 4 * D), "down": f32(L, 4 * D, D)}, f32(N, D))


def attention(x, w, weigh):
    q, k, v = jnp.split((x @ w["qkv"]).reshape(*x.shape[:2], 3 * HEADS, -1), 3, axis=2)
    mixed = weigh(jnp.einsum("bqhd,bkhd->bhqk", q, k))
    return x + jnp.einsum("bhqk,bkhd->bqhd", mixed, v).reshape(x.shape) @ w["out"]


ATTENTION = {"qkv": f32(L, 256, 3 * 256), "out": f32(L, 256, 256)}, f32(4, 1024, 256)


def masks(is_again):
    @again(is_again)
    def masked(ids, scores):
        places = jnp.arange(scores.shape[-1])
        mask = (places <= places[:, None]) & (ids[:, None, None] == ids[:, None, :, None])
        return jnp.where(mask, scores, -1e9)

    def body(carry, w):
        x, ids = carry
        weigh = lambda scores: jax.nn.softmax(masked(ids, scores))
        return (attention(x, w, weigh), ids + 1), None

    def loss(ws, x, ids):
        return jnp.sum(jax.lax.scan(body, (x, ids), ws)[0][0] ** 2)

    return loss, (*ATTENTION, jax.ShapeDtypeStruct((4, 1024), jnp.int32))


def dropout_bits(is_again):
    @again(is_again)
    def dropout(key, x):
        return jnp.where(jax.random.bernoulli(key, 0.9, x.shape), x / 0.9, 0)

    def body(x, slices):
        w, key = slices
        return attention(x, w, lambda scores: dropout(key, jax.nn.softmax(scores))), None

    def loss(ws, x, key):
        return jnp.sum(jax.lax.scan(body, x, (ws, jax.random.split(key, L)))[0] ** 2)

    return loss, (*ATTENTION, jax.eval_shape(jax.random.key, 0))


def linen(is_again):
    nn = pytest.importorskip("flax.linen")
    Dense = nn.remat(nn.Dense, prevent_cse=False) if is_again else nn.Dense

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x, _):
            up = jnp.tanh(Dense(4 * D, dtype=BF16, use_bias=False)(x))
            return x + Dense(D, dtype=BF16, use_bias=False)(up), None

    stack = nn.scan(Block, variable_axes={"params": 0}, split_rngs={"params": True}, length=L)()
    x = jax.ShapeDtypeStruct((N, D), BF16)

    def loss(variables, x):
        return jnp.sum(stack.apply(variables, x, None)[0].astype(jnp.float32) ** 2)

    return loss, (jax.eval_shape(stack.init, jax.random.key(0), x, None), x)


def nnx(is_again):
    nnx = pytest.importorskip("flax.nnx")
    call = lambda module, x: module(x)
    call = nnx.remat(call, prevent_cse=False) if is_again else call

    class Block(nnx.Module):
        def __init__(self, rngs):
            linear = functools.partial(nnx.Linear, dtype=BF16, use_bias=False, rngs=rngs)
            self.up, self.down = linear(D, 4 * D), linear(4 * D, D)

        def __call__(self, x):
            return x + call(self.down, jnp.tanh(call(self.up, x)))

    def blocks():
        return nnx.vmap(Block)(nnx.Rngs(0).fork(split=L))

    def loss(blocks, x):
        graph, params = nnx.split(blocks)
        body = lambda x, w: (nnx.merge(graph, w)(x), None)
        return jnp.sum(jax.lax.scan(body, x, params)[0].astype(jnp.float32) ** 2)

    return loss, (nnx.eval_shape(blocks), jax.ShapeDtypeStruct((N, D), BF16))


def equinox(is_again):
    eqx = pytest.importorskip("equinox")

    class Linear(eqx.Module):
        weight: jax.Array

        def __call__(self, x):
            return again(is_again)(lambda w, x: x @ w.astype(x.dtype).T)(self.weight, x)

    class Block(eqx.Module):
        up: Linear
        down: Linear

        def __call__(self, x):
            return x + self.down(jnp.tanh(self.up(x)))

    def loss(blocks, x):
        arrays, static = eqx.partition(blocks, eqx.is_array)
        body = lambda x, a: (eqx.combine(a, static)(x), None)
        return jnp.sum(jax.lax.scan(body, x, arrays)[0].astype(jnp.float32) ** 2)

    blocks = Block(Linear(f32(L, 4 * D, D)), Linear(f32(L, D, 4 * D)))
    return loss, (blocks, jax.ShapeDtypeStruct((N, D), BF16))


PROGRAMS = (casts, masks, dropout_bits, linen, nnx, equinox)
# What the gate has time for.
GATE = {(nnx, "gpu:h100"), (casts, "tpu:v5e")}


@pytest.mark.parametrize(("program", "on"), cases(PROGRAMS, GATE))
def test_the_peak_of_xla_falls_as_much(program, on):
    found = peaks(program, "JXR834", on)
    assert found.fall > 0.7 * found.estimated_fall

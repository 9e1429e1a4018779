"""The name of what a checkpoint wraps: what the user wrote, below decorators."""

import functools

import jax
import jax.numpy as jnp
import pytest

import jaxresid
from tests.small import f32


def typed(fn):
    """Wrap as jaxtyping does: the wrapper takes anything, and what it calls does not."""

    def checked(args, kwargs, bound):
        return fn(*args, **kwargs)

    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        return checked(args, kwargs, None)

    return wrapper


def bare(fn):
    def inner(self, x):
        return fn(self, x)

    return inner


def in_bfloat16(fn):
    def inner(self, x):
        return fn(self, x.astype(jnp.bfloat16)).astype(jnp.float32)

    return inner


def logged(level):
    def decorate(fn):
        def inner(self, x):
            return fn(self, x=x)

        return inner

    return decorate


DECORATORS = {
    "typed": typed,
    "bare": bare,
    "in bfloat16": in_bfloat16,
    "with arguments": logged("debug"),
    "two": lambda fn: bare(typed(fn)),
}


def named(fun, *args):
    return {c.function for c in jaxresid.inspect(fun, on="gpu:h100")(*args).checkpoints}


def method_of(decorate):
    class Block:
        def __init__(self, w):
            self.w = w

        @decorate
        def __call__(self, x):
            return jnp.tanh(x @ self.w)

        @decorate
        def attend(self, x):
            return jnp.tanh(x @ self.w)

    return Block


@pytest.mark.parametrize("decorate", DECORATORS.values(), ids=DECORATORS)
def test_a_decorated_body_has_its_own_name(decorate):
    @decorate
    def layer(w, x):
        return jnp.tanh(x @ w)

    block = method_of(decorate)
    args = f32(8, 8), f32(4, 8)
    assert named(lambda w, x: jax.checkpoint(layer)(w, x).sum(), *args) == {"layer"}
    assert named(lambda w, x: jax.checkpoint(block(w))(x).sum(), *args) == {"Block"}
    attending = named(lambda w, x: jax.checkpoint(block(w).attend)(x).sum(), *args)
    assert attending == {"Block.attend"}


@pytest.mark.parametrize("decorate", DECORATORS.values(), ids=DECORATORS)
def test_so_have_modules_of_linen(decorate):
    nn = pytest.importorskip("flax.linen")

    class Layer(nn.Module):
        @nn.compact
        @decorate
        def __call__(self, x):
            return x + nn.Dense(8)(nn.tanh(nn.Dense(16)(x)))

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.remat(Layer)()(x).sum()

    net = Net()
    params = jax.eval_shape(lambda x: net.init(jax.random.key(0), x), f32(4, 8))
    assert named(net.apply, params, f32(4, 8)) == {"Layer"}


def test_so_has_what_equinox_jits():
    eqx = pytest.importorskip("equinox")

    class Block(eqx.Module):
        w: jax.Array

        @eqx.filter_jit
        def __call__(self, x):
            return jnp.tanh(x @ self.w)

    def loss(w, x):
        return eqx.filter_checkpoint(Block(w))(x).sum()

    assert named(loss, f32(8, 8), f32(4, 8)) == {"Block"}


def attend(x, w):
    return jnp.tanh(x @ w)


def block_with(attention):
    def block(w, x):
        return x * attention(x, w)

    return block


def block_of_locals():
    def inner(w, x):
        return attend(x, w)

    def block(w, x):
        return inner(w, x)

    return block


@pytest.mark.parametrize("block", [block_with(attend), block_of_locals()])
def test_a_function_that_computes_or_calls_its_own_keeps_its_name(block):
    def loss(w, x):
        return jax.checkpoint(block)(w, x).sum()

    assert named(loss, f32(8, 8), f32(4, 8)) == {"block"}


def test_what_jaxtyping_checks():
    jaxtyping = pytest.importorskip("jaxtyping")
    linen = pytest.importorskip("flax.linen")
    typed_by_library = jaxtyping.jaxtyped(typechecker=lambda fn: fn)

    @typed_by_library
    def layer(x: jaxtyping.Float[jax.Array, "..."], w: jaxtyping.Float[jax.Array, "..."]):
        return jnp.sin(jnp.sin(x @ w) @ w)

    def loss(w, x):
        return jnp.sum(jax.checkpoint(layer)(x, w) ** 2)

    assert named(loss, f32(64, 64), f32(512, 64)) == {"layer"}

    class Layer(linen.Module):
        @typed_by_library
        @linen.compact
        def __call__(self, x: jaxtyping.Float[jax.Array, "..."]):
            return x + linen.Dense(64)(linen.gelu(linen.Dense(256)(x)))

    model = linen.remat(Layer)()
    params = jax.eval_shape(lambda: model.init(jax.random.key(0), jnp.zeros((2, 64))))
    assert named(lambda p, x: jnp.sum(model.apply(p, x) ** 2), params, f32(512, 64)) == {"Layer"}

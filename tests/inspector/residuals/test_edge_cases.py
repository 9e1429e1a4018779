"""Ops without results, and values without elements: valid programs that every part has to take."""

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import io_callback

import jaxresid


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, "float32")


def printing(w, x):
    y = jnp.tanh(x @ w)
    jax.debug.print("{}", y.sum())
    return jnp.mean(y**2)


def printing_in_order(w, x):
    y = jnp.tanh(x @ w)
    jax.debug.print("{}", y, ordered=True)
    return jnp.mean(y.T @ y)


def called_for_nothing(w, x):
    y = jnp.tanh(x @ w)
    io_callback(lambda y: None, None, jax.lax.stop_gradient(y))
    return jnp.mean(y.T)


def of_a_product_of_its_own(w, x):
    jax.debug.print("{}", jax.lax.stop_gradient(x @ w))
    return jnp.mean(jnp.sin(x * 2))


def scanned(w, x):
    return jax.lax.scan(lambda x, _: (x + printing(w, x), None), x, length=3)[0].sum()


def checkpointed(w, x):
    return jax.checkpoint(printing)(w, jnp.sin(x)) + jnp.sum(x)


def step(w, x):
    value, gradient = jax.value_and_grad(printing)(w, x)
    jax.debug.print("{}", value)
    return w - gradient


@pytest.mark.parametrize(
    "fun",
    [
        *(printing, printing_in_order, called_for_nothing, of_a_product_of_its_own),
        *(scanned, checkpointed, step),
    ],
)
def test_what_calls_back_keeps_what_it_keeps_without(fun, monkeypatch):
    inputs = f32(64, 64), f32(32, 64)
    with_calls = jaxresid.inspect(fun, on="tpu:v5p")(*inputs)
    monkeypatch.setattr(jax.debug, "print", lambda *args, **kwargs: None)
    monkeypatch.setitem(globals(), "io_callback", lambda *args: None)
    without = jaxresid.inspect(fun, on="tpu:v5p")(*inputs)
    assert with_calls.totals == without.totals
    # What is given to a call lives until then: at most two arrays of the size of x, and a scalar.
    assert 0 <= with_calls.peak.nbytes - without.peak.nbytes <= 2 * 32 * 64 * 4 + 4


def test_an_array_without_elements():
    report = jaxresid.inspect(lambda w, x: jnp.sum(jnp.sin(x @ w)), on="tpu:v5p")(
        f32(64, 0), f32(32, 64)
    )
    # Of the arguments only x holds anything, and so does its gradient.
    assert report.peak.nbytes == pytest.approx(2 * 32 * 64 * 4, abs=1024)


def scanned_over_nothing(x):
    return jax.lax.scan(lambda c, i: (jnp.sin(c), c * i), x, jnp.arange(0.0))[1].sum() + x.sum()


def scanned_in_half(x):
    return jax.lax.scan(
        lambda c, h: (jnp.sin(c), jnp.sum(h.astype("float32") ** 2)), x, jnp.ones(0, "bfloat16")
    )[1].sum() + jnp.sum(x)


def scanned_with_a_checkpoint(x):
    body = jax.checkpoint(lambda c, i: (jnp.sin(c) * i, None))
    return jax.lax.scan(body, x, jnp.arange(0.0))[0].sum()


def looped_over_nothing(x):
    for row in x:
        x = x + jax.checkpoint(jnp.sin)(row)
    return jnp.sum(x)


@pytest.mark.integration
@pytest.mark.parametrize("shape", [(0,), (0, 4), (4, 4)])
@pytest.mark.parametrize(
    "fun",
    [scanned_over_nothing, scanned_in_half, scanned_with_a_checkpoint, looped_over_nothing],
)
def test_loops_over_nothing_are_checked_compared_and_planned(fun, shape):
    assert isinstance(jaxresid.check(fun)(f32(*shape)), tuple)
    assert jaxresid.compare(fun)(f32(*shape)).rows
    assert jaxresid.plan(fun, budget="1KiB")(f32(*shape))

"""JXR834: what loops keep although it is cheap to make, and what the program takes without it."""

import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

import jaxresid
from jaxresid.inspector.findings.proposals import rewrite_effect
from jaxresid.inspector.variants.rewrites.effects import Figures

L, N, D = 16, 64, 256
BF16 = jnp.bfloat16
again = functools.partial(jax.checkpoint, prevent_cse=False)


def array(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


ARGS = array(L, D, D), array(N, D, dtype=BF16)


def product(x, w):
    return x @ w.astype(x.dtype)


def casting(product):
    def loss(ws, x):
        x, _ = jax.lax.scan(lambda x, w: (jnp.tanh(product(x, w)), None), x, ws)
        return jnp.sum(x.astype(jnp.float32))

    return loss


def found(fun, *args, on="gpu:h100", **options):
    return [v for v in jaxresid.check(fun, on=on, **options)(*args) if v.code == "JXR834"]


def as_step(loss):
    def step(ws, x):
        return ws - 0.1 * jax.grad(loss)(ws, x)

    return step


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, as_step], ids=["plain", "jit", "step"])
def test_the_figures_are_those_of_the_same_code_by_hand(wrap):
    (violation,) = found(wrap(casting(product)), *ARGS)
    inspect = lambda fun: jaxresid.inspect(wrap(fun), on="gpu:h100")(*ARGS)
    before, after = inspect(casting(product)), inspect(casting(again(product)))
    measured = violation.measured
    assert (measured["made_of"], measured["trips"]) == ("arguments", L)
    assert measured["nbytes"] == L * D * D * 2
    assert measured["peak_before_nbytes"] == before.peak.nbytes
    assert measured["peak_nbytes"] == after.peak.nbytes
    assert measured["kept_nbytes"] == after.totals.computed_nbytes
    more = after.cost.total.flops - before.cost.total.flops
    assert measured["recompute_flops"] == more


def test_it_is_at_the_line_that_makes_most():
    def loss(ws, x):
        def body(x, w):
            x = jnp.tanh(x @ w[:, :D].astype(x.dtype))
            return jnp.tanh(x @ w[:, D:].astype(x.dtype))[:, :D], None

        x, _ = jax.lax.scan(body, x, ws)
        return jnp.sum(x.astype(jnp.float32))

    (violation,) = found(loss, array(L, D, 4 * D), ARGS[1])
    assert "here and on 1 other line " in violation.message
    assert violation.span.row == loss.__code__.co_firstlineno + 3


def returning(ws, x):
    def body(x, w):
        narrow = w.astype(x.dtype)
        return jnp.tanh(x @ narrow), narrow

    x, narrow = jax.lax.scan(body, x, ws)
    return jnp.sum(x.astype(jnp.float32)), narrow


def elsewhere(ws, x):
    wide = jnp.tile(jnp.sin(x), (1, 2048))
    for _ in range(4):
        wide = jnp.sin(jnp.cos(wide))
    return casting(product)(ws, x) + jnp.sum(wide)


def of_one_trip(ws, x):
    return casting(product)(ws[:1], x)


def casting_activations(ws, x):
    return casting(lambda x, w: (x.astype(jnp.float32) @ w).astype(x.dtype))(ws, x)


@pytest.mark.parametrize("fun", [returning, elsewhere, of_one_trip, casting_activations])
def test_it_is_silent_where_the_peak_stays(fun):
    assert found(fun, *ARGS, has_aux=fun is returning) == []


@pytest.mark.parametrize(("flops", "more"), [(998, 0), (1000, 0), (1100, 100)])
def test_what_is_computed_less_is_no_negative_recomputation(flops, more):
    """A rewritten program has its calls inlined, of which JAX may leave out more."""
    report = jaxresid.inspect(casting(product), on="gpu:h100")(*ARGS)
    before = SimpleNamespace(cost=lambda: SimpleNamespace(flops=1000))
    figures = Figures(
        report.peak.nbytes, report.totals.computed_nbytes, SimpleNamespace(flops=flops)
    )
    text, measured = rewrite_effect(report, before, figures)
    assert measured["recompute_flops"] == more
    assert (measured["flops_before"], measured["flops"]) == (1000, flops)
    assert text.startswith("estimated peak stays at ")
    assert ("100 FLOP more" in text) == bool(more)
    assert "kept" not in text

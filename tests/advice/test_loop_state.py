"""JXR833: what a loop stacks or carries in vain, and what the program takes without it."""

import jax
import jax.numpy as jnp
import pytest

import jaxresid
from jaxresid.inspector.variants.rewrites.effects import Rewrites

L, N, D = 16, 2048, 64


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


ARGS = f32(L, D, D), f32(N, D)


def scanned(ws, x, result):
    @jax.checkpoint
    def body(x, w):
        x = x + jnp.tanh(x @ w)
        return x, result(x)

    return jax.lax.scan(body, x, ws)


def last_of_stack(ws, x):
    _, stack = scanned(ws, x, lambda x: x)
    return jnp.sum(stack[-1] ** 2)


def carry(ws, x):
    return jnp.sum(scanned(ws, x, lambda x: None)[0] ** 2)


def found(fun, *args, on="gpu:h100", **options):
    return [v for v in jaxresid.check(fun, on=on, **options)(*args) if v.code == "JXR833"]


def as_step(loss):
    def step(ws, x):
        value, gradient = jax.value_and_grad(loss)(ws, x)
        return ws - 0.1 * gradient, value

    return step


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, as_step], ids=["plain", "jit", "step"])
def test_the_figures_are_those_of_the_same_code_by_hand(wrap):
    (violation,) = found(wrap(last_of_stack), *ARGS)
    before, after = (
        jaxresid.inspect(wrap(f), on="gpu:h100")(*ARGS) for f in (last_of_stack, carry)
    )
    measured = violation.measured
    assert measured["unread_nbytes"] == L * N * D * 4
    assert measured["peak_before_nbytes"] == before.peak.nbytes
    assert measured["peak_nbytes"] == after.peak.nbytes
    assert measured["kept_nbytes"] == after.totals.computed_nbytes
    more = after.cost.total.flops - before.cost.total.flops
    change = measured["flops"] - measured["flops_before"]
    assert change == pytest.approx(more, abs=1e-3 * before.cost.total.flops)


def test_it_is_at_the_loop():
    (violation,) = found(last_of_stack, *ARGS)
    assert violation.path.endswith("test_loop_state.py")
    assert violation.span.row == scanned.__code__.co_firstlineno + 6


@pytest.mark.parametrize(("extra", "is_said"), [(450, True), (500, False)])
def test_it_is_worth_a_word_from_3_percent_on(extra, is_said):
    """Beside `extra` MiB of arguments 15 of those of the peak are in vain."""

    def loss(ws, x, others):
        return last_of_stack(ws, x) + jnp.sum(others)

    args = (*ARGS, f32(extra * 2**18))
    (violation,) = found(last_of_stack, *ARGS)
    saved = violation.measured["peak_before_nbytes"] - violation.measured["peak_nbytes"]
    peak = jaxresid.inspect(loss, on="gpu:h100", argnums=(0, 1))(*args).peak.nbytes
    assert (saved > 0.03 * peak) == is_said
    assert bool(found(loss, *args, argnums=(0, 1))) == is_said


def test_loops_of_one_line_are_one_finding():
    def loss(ws, x):
        for _ in range(3):
            _, stack = scanned(ws, x, lambda x: x)
            x = stack[-1]
        return jnp.sum(x)

    (violation,) = found(loss, *ARGS)
    assert violation.message.startswith("the 3 loops of 16 trips each here stack")
    assert violation.measured["unread_nbytes"] == 3 * L * N * D * 4


def test_what_is_not_at_the_peak_is_not_traced(monkeypatch):
    """A stack of which the last is read, early; the peak is behind it."""
    asked = []
    monkeypatch.setattr(Rewrites, "figures", lambda *_: asked.append(1))

    def loss(w, x, wide):
        _, stack = jax.lax.scan(lambda x, _: (jnp.sin(x @ w), x[:, :32]), x, length=16)
        return jnp.sum(jnp.tanh(jnp.tanh(stack[-1] @ wide) @ wide.T))

    def traced(columns):
        asked.clear()
        args = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((64, 64), (64, 64), (32, columns))]
        jaxresid.inspect(loss, mode="loss", argnums=(0, 1), on="gpu:h100")(*args)
        return bool(asked)

    assert traced(64)
    assert not traced(4096)

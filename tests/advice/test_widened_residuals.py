"""JXR806: what is widened without being asked for, and what the program takes if it is not."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from peaks_by_xla import peak_by_xla

import jaxresid
from jaxresid.base.thresholds import WORTH_SAYING
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.findings import widening
from jaxresid.inspector.report import inspection
from jaxresid.inspector.variants.rewrites.effects import Rewrites

N, D, L = 4096, 256, 8


def bf16(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def scanned(layer, x, weights):
    x, _ = jax.lax.scan(lambda x, w: (layer(x, w), None), x, weights)
    return jnp.sum(x.astype(jnp.float32))


def found(fun, *args, on="gpu:h100", **options):
    return [v for v in jaxresid.check(fun, on=on, **options)(*args) if v.code == "JXR806"]


# -- programs, and as they are written by hand ---------------------------------------------------


def scaled(cast):
    def layer(x, w):
        y = x @ w[0]
        y = y * cast(w[1])
        return jnp.sin(jnp.cos(y)).astype(x.dtype)

    return lambda ws, scales, x: scanned(layer, x, (ws, scales))


def masked(cast):
    def loss(ws, mask, x):
        def layer(x, w):
            y = jnp.tanh(x @ w)
            y = y * cast(mask)
            return jnp.sin(y).astype(x.dtype)

        return scanned(layer, x, ws)

    return loss


def rotary(cast):
    def rotated(x, cos, sin):
        a, b = jnp.split(x, 2, -1)
        return x * cast(cos) + jnp.concatenate([-b, a], -1) * cast(sin)

    def loss(ws, cos, sin, x):
        def layer(x, w):
            y = rotated(x @ w, cos, sin)
            return jnp.tanh(jnp.sin(y)).astype(x.dtype)

        return scanned(layer, x, ws)

    return loss


def through_matmuls(cast):
    def loss(ws, scale, x):
        def layer(x, w):
            y = jnp.sin((x @ w) * cast(scale))
            y = jnp.cos(y @ w)
            return jnp.sin(y).astype(x.dtype)

        return scanned(layer, x, ws)

    return loss


def through_jit(cast):
    @jax.jit
    def activation(y, scale):
        y = y * cast(scale)
        return jnp.sin(jnp.cos(y))

    def loss(ws, scale, x):
        return scanned(lambda x, w: activation(x @ w, scale).astype(x.dtype), x, ws)

    return loss


WS, X = bf16(L, D, D), bf16(N, D)
PROGRAMS = [
    (scaled, (WS, f32(L, D), X)),
    (masked, (WS, f32(N, D), X)),
    (rotary, (WS, f32(N, D), f32(N, D), X)),
    (through_matmuls, (WS, f32(D), X)),
    (through_jit, (WS, f32(D), X)),
]


@pytest.mark.parametrize(("program", "args"), PROGRAMS, ids=lambda p: getattr(p, "__name__", ""))
def test_it_is_worth_what_the_narrow_program_is(program, args):
    (violation,) = found(program(lambda x: x), *args)
    by_hand = program(lambda x: x.astype(jnp.bfloat16))
    assert found(by_hand, *args) == []
    report = jaxresid.inspect(by_hand, on="gpu:h100")(*args)
    measured = violation.measured
    assert measured["peak_nbytes"] == pytest.approx(report.peak.nbytes, rel=0.02)
    assert measured["kept_nbytes"] == pytest.approx(report.totals.computed_nbytes, rel=0.02)
    assert (measured["before"], measured["dtype"]) == ("bfloat16", "float32")
    line = next(i for i, text in enumerate(LINES, 1) if f"def {program.__name__}(" in text)
    assert line < violation.span.row < line + 12


LINES = Path(__file__).read_text(encoding="utf-8").splitlines()


def test_functions_of_jax_are_named():
    def layer(x, w):
        x = x / jnp.sqrt(jnp.var(x, axis=-1, keepdims=True) + 1)
        return jnp.tanh(x @ w).astype(jnp.bfloat16)

    (violation,) = found(lambda ws, x: scanned(layer, x, ws), WS, X)
    assert violation.message.startswith("jax's `var` widens bfloat16 to float32")
    assert violation.measured["peak_nbytes"] < 0.9 * violation.measured["peak_before_nbytes"]


@pytest.mark.integration
def test_in_a_training_step():
    def step(ws, scales, x):
        value, gradients = jax.value_and_grad(scaled(lambda x: x))(ws, scales, x)
        return ws - gradients, value

    (violation,) = found(jax.jit(step, donate_argnums=0), WS, f32(L, D), X)
    assert violation.measured["kept_nbytes"] < violation.measured["kept_before_nbytes"]


@pytest.mark.integration
def test_the_narrow_program_computes_the_same_but_for_rounding():
    program, args = rotary, (bf16(2, 64, 64), f32(512, 64), f32(512, 64), bf16(512, 64))
    fun = program(lambda x: x)
    proposals = inspection(Question(fun, args, on="gpu:h100")).proposals
    (proposal,) = (each for each in proposals if each.finding.name == "widened-residual")
    keys = jax.random.split(jax.random.key(0), len(args))
    given = [
        (0.1 * jax.random.normal(key, x.shape)).astype(x.dtype)
        for key, x in zip(keys, args, strict=True)
    ]
    made = jax.jit(proposal.changed().trace.lowerable().run)(given)
    expected = jax.jit(jax.value_and_grad(fun, (0, 1, 2, 3)))(*given)
    for a, b in zip(made, jax.tree.leaves(expected), strict=True):
        a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
        assert np.linalg.norm(a - b) <= 0.05 * np.linalg.norm(b) + 1e-3


# -- where it is silent, although it looks like that ---------------------------------------------


def asked_for(ws, scale, x):
    def layer(x, w):
        y = (x @ w).astype(jnp.float32) * scale
        return jnp.sin(jnp.cos(y)).astype(x.dtype)

    return scanned(layer, x, ws)


def asked_for_as_dtype(ws, scale, x):
    def layer(x, w):
        y = jnp.multiply(x @ w, jnp.asarray(scale, dtype=jnp.bfloat16))
        return jnp.sin(jnp.cos(jnp.asarray(y, dtype="float32"))).astype(x.dtype)

    return scanned(layer, x, ws)


def wide_stream(ws, scale, x):
    def layer(h, w):
        y = jnp.tanh(h.astype(jnp.bfloat16) @ w)
        return h + y

    return scanned(layer, x.astype(jnp.float32), ws)


def wide_stream_unrolled(ws, scale, x):
    h = x.astype(jnp.float32)
    for i in range(L):
        y = jnp.tanh(h.astype(jnp.bfloat16) @ ws[i])
        h = jnp.sin(h + y)
    return jnp.sum(h)


def added_up(ws, scale, x):
    def layer(carry, w):
        x, total = carry
        x = jnp.tanh(x @ w)
        return (x, total + x), None

    (_, total), _ = jax.lax.scan(layer, (x, jnp.zeros(x.shape, jnp.float32)), ws)
    return jnp.sum(total)


def sums_alone(ws, scale, x):
    def layer(x, w):
        y = x @ w
        return y - jnp.mean(y, axis=-1, keepdims=True)

    return scanned(layer, x, ws)


def wide_products(ws, scale, x):
    def layer(x, w):
        y = jax.lax.dot(x, w, preferred_element_type=jnp.float32)
        return jnp.sin(jnp.cos(y)).astype(x.dtype)

    return scanned(layer, x, ws)


def checkpointed(ws, scale, x):
    @jax.checkpoint
    def layer(x, w):
        y = x @ w
        y = y * scale
        return jnp.sin(jnp.cos(y)).astype(x.dtype)

    return scanned(layer, x, ws)


def at_the_end(ws, scale, x):
    x, _ = jax.lax.scan(lambda x, w: (jnp.sin(jnp.cos(x @ w)), None), x, ws)
    y = jnp.sum(x, axis=0) * scale
    return jnp.sum(jnp.sin(y))


def unrolled(ws, scale, x):
    """XLA computes again what is cheap, so that nothing wide is kept."""
    for i in range(L):
        x = (x @ ws[i]) * scale
        x = x.astype(jnp.bfloat16)
    return jnp.sum(x)


def wide_throughout(ws, scale, x):
    ws, x = ws.astype(jnp.float32), x.astype(jnp.float32)
    return scanned(lambda x, w: jnp.sin(jnp.cos((x @ w) * scale)), x, ws)


def of_integers(ws, scale, x):
    def layer(x, w):
        y = jnp.round(x @ w).astype(jnp.int8)
        return jnp.tanh(x * (y * 0.5)).astype(x.dtype)

    return scanned(layer, x, ws)


def gated_by_wide_values(ws, scale, x):
    """What is computed in float32 on purpose meets what is narrow."""
    gate = jnp.exp(x.astype(jnp.float32))
    gate = jnp.sin(jnp.sin(gate) * gate) * gate

    def layer(x, w):
        y = x @ w
        return (y * gate).astype(x.dtype)

    return scanned(layer, x, ws)


def in_a_library(ws, scale, x):
    nn = pytest.importorskip("flax.linen")
    norm = nn.LayerNorm(dtype=jnp.bfloat16)
    given = {"params": {"scale": scale, "bias": scale}}

    def layer(x, w):
        return jnp.tanh(norm.apply(given, x @ w))

    return scanned(layer, x, ws)


TEMPTING = [
    asked_for,
    asked_for_as_dtype,
    wide_stream,
    wide_stream_unrolled,
    added_up,
    sums_alone,
    wide_products,
    checkpointed,
    at_the_end,
    unrolled,
    wide_throughout,
    of_integers,
    gated_by_wide_values,
    in_a_library,
]


@pytest.mark.parametrize("fun", TEMPTING)
@pytest.mark.parametrize("on", ["gpu:h100", "tpu:v5e"])
def test_it_is_silent(fun, on):
    assert found(fun, WS, f32(D), X, on=on) == []


def stream_as_argument(ws, h, x):
    """A sum with as many values that are given in float32."""

    def layer(x, w):
        y = x @ w
        z = h + y
        return jnp.sin(jnp.cos(z)).astype(jnp.bfloat16)

    return scanned(layer, x, ws)


def multiplied_stream(ws, h, x):
    def layer(h, w):
        y = jnp.tanh(h.astype(jnp.bfloat16) @ w)
        z = h * y
        return jnp.sin(jnp.cos(z))

    return scanned(layer, h, ws)


def gated_by_what_is_computed(ws, h, x):
    def layer(x, w):
        y = x @ w
        gate = jnp.exp(x.astype(jnp.float32))
        z = y * gate
        return jnp.sin(jnp.cos(z)).astype(jnp.bfloat16)

    return scanned(layer, x, ws)


@pytest.mark.parametrize("fun", [stream_as_argument, multiplied_stream, gated_by_what_is_computed])
def test_what_meets_as_many_wide_values_is_left_wide(fun):
    assert found(fun, WS, f32(N, D), X) == []


@pytest.mark.gpu
@pytest.mark.integration
def test_xla_agrees():
    """XLA's peak of the program as it is rewritten is that of the program written so."""
    args = bf16(L, 2 * D, 2 * D), f32(L, 2 * D), bf16(2 * N, 2 * D)
    (violation,) = found(scaled(lambda x: x), *args, compile=True, compile_time=300)
    by_hand = peak_by_xla(scaled(lambda x: x.astype(jnp.bfloat16)), args, "gpu:h100")
    assert violation.measured["compiler_verdict"] == "confirmed"
    assert violation.measured["compiler_peak_nbytes"] == pytest.approx(by_hand, rel=0.02)


def partly(columns):
    """Layers of which so many columns are widened; the others stay narrow."""

    def loss(ws, scale, x):
        def layer(x, w):
            y = jnp.tanh(jnp.sin(x @ w))
            wide = y[:, :columns] * scale
            wide = jnp.sin(jnp.cos(wide))
            return jnp.concatenate([wide.astype(x.dtype), y[:, columns:]], 1)

        return scanned(layer, x, ws)

    return loss, (bf16(L, D, D), f32(columns), bf16(N, D))


@pytest.mark.parametrize(("columns", "is_traced"), [(D // 2, True), (D // 64, False)])
def test_what_cannot_be_worth_it_is_not_traced(columns, is_traced, monkeypatch):
    asked = []
    monkeypatch.setattr(Rewrites, "figures", lambda *_: asked.append(1))
    fun, args = partly(columns)
    made = jaxresid.inspect(fun, mode="loss", on="gpu:h100")(*args)
    wide = sum(v.nbytes for v in made.peak.live if v.aval and v.aval.dtype == "float32")
    assert wide > WORTH_SAYING * made.peak.nbytes / 4
    assert bool(asked) == is_traced


@pytest.mark.parametrize("columns", [D, D // 2, D // 32])
def test_no_rewrite_saves_more_than_its_bound(columns, monkeypatch):
    bounds, saved = [], []
    bound, figures = widening._most_saved, Rewrites.figures

    def bounded(peak, cast):
        bounds.append((peak.nbytes, bound(peak, cast)))
        return float("inf")

    def measured(self, *rewrite):
        made = figures(self, *rewrite)
        saved.append(bounds[-1][0] - made.peak_nbytes)
        return made

    monkeypatch.setattr(widening, "_most_saved", bounded)
    monkeypatch.setattr(Rewrites, "figures", measured)
    fun, args = partly(columns)
    jaxresid.inspect(fun, mode="loss", on="gpu:h100")(*args)
    assert len(saved) == len(bounds) == 1
    assert saved[0] <= bounds[0][1]

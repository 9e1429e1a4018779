"""JXR842 against compilers: XLA's peak falls where gradients are really added up over parts."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from peaks_by_xla import cases, peak_by_xla, peaks

import jaxresid

D, LAYERS = 4096, 8


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def accumulated(loss, count):
    """Return the value and gradients of a loss over microbatches, as a person would write them."""
    both = jax.value_and_grad(loss)
    if count == 1:
        return both

    def over_parts(params, x):
        def add(total, part):
            return jax.tree.map(jnp.add, total, both(params, part)), None

        zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), (f32(), params))
        total, _ = lax.scan(add, zeros, x.reshape(count, -1, *x.shape[1:]))
        return jax.tree.map(lambda a: a / count, total)

    return over_parts


def momentum(loss, params, x, count):
    def step(params, momenta, x):
        value, gradients = accumulated(loss, count)(params, x)
        momenta = jax.tree.map(lambda m, g: 0.9 * m + g, momenta, gradients)
        return jax.tree.map(lambda p, m: p - 0.1 * m, params, momenta), momenta, value

    return jax.jit(step, donate_argnums=(0, 1)), (params, params, x)


def dense(count):
    def loss(ws, x):
        for w in ws:
            x = x + jnp.sin(x @ w)
        return jnp.mean(x**2)

    return momentum(loss, [f32(D, D)] * LAYERS, f32(2**19, D), count)


def scanned(count):
    def loss(ws, x):
        x, _ = lax.scan(lambda x, w: (x + jax.nn.gelu(x @ w), None), x, ws)
        return jnp.mean(x**2)

    return momentum(loss, f32(LAYERS, D, D), f32(2**19, D), count)


def linen(count):
    nn = pytest.importorskip("flax.linen")

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            for _ in range(2):
                x = x + nn.SelfAttention(16)(nn.LayerNorm()(x))
                x = x + nn.Dense(1024)(nn.gelu(nn.Dense(4096)(x)))
            return x

    model, x = Model(), f32(256, 1024, 1024)
    params = jax.eval_shape(model.init, jax.random.key(0), x)
    return momentum(lambda p, x: jnp.mean(model.apply(p, x) ** 2), params, x, count)


@pytest.mark.parametrize(("program", "on"), cases((dense, scanned, linen), {(scanned, "tpu:v5e")}))
def test_the_peak_of_xla_falls_as_well(program, on):
    found = peaks(program, "JXR842", on, 1, lambda measured: measured["microbatches"])
    assert found.after == pytest.approx(found.estimated_after, rel=0.1)
    # Of what is far too big a compiler recomputes a part by itself, and takes less than estimated:
    # 81 GiB of an estimated 137 on an H100 (jaxlib 0.10.2), where the batch is halved.
    assert found.fall > 0.6 * found.estimated_fall


@pytest.mark.integration
@pytest.mark.parametrize(
    "on",
    [
        pytest.param("gpu:h100", marks=pytest.mark.gpu),
        pytest.param("tpu:v5e", marks=pytest.mark.tpu),
    ],
)
def test_what_is_compiled_takes_what_the_code_by_hand_takes(on):
    def step(count):
        loss = lambda ws, x: jnp.mean(lax.scan(lambda x, w: (jnp.sin(x @ w), x), x, ws)[0] ** 2)
        return momentum(loss, f32(4, 1024, 1024), f32(2**15, 1024), count)

    fun, args = step(1)
    asked = {"on": on, "compile": True, "compile_time": 300, "max_peak": "400MiB"}
    (measured,) = [v.measured for v in jaxresid.check(fun, **asked)(*args) if v.code == "JXR842"]
    by_hand = peak_by_xla(*step(measured["microbatches"]), on)
    assert measured["compiler_verdict"] == "confirmed"
    assert measured["compiler_peak_before_nbytes"] == peak_by_xla(fun, args, on)
    assert measured["compiler_peak_nbytes"] == pytest.approx(by_hand, rel=0.02)
    assert measured["compiler_peak_nbytes"] <= measured["limit_nbytes"]

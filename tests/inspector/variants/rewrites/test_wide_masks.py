"""Biases in place of masks that select scores: the same values and gradients, and XLA's peak."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from peaks_by_xla import cases, peaks

import jaxresid
from jaxresid import jax_compat
from jaxresid.inspector.findings.wide_masks import masked_scores, with_biases

B, H, S = 2, 3, 4
SCORES = 3 * jnp.sin(jnp.arange(B * H * S * S * 1.0)).reshape(B, H, S, S)
CAUSAL = jnp.tril(jnp.ones((S, S), bool))
KEYS = jnp.array([[True, True, True, False], [True, True, False, False]])[:, None, None]
LEAST = jnp.finfo(jnp.float32).min


def softmax(scores):
    weights = jnp.exp(scores - jax.lax.stop_gradient(scores.max(-1, keepdims=True)))
    return weights / weights.sum(-1, keepdims=True)


MASKED = {
    "causal": lambda s: jax.nn.softmax(jnp.where(CAUSAL, s, -1e30)),
    "infinite": lambda s: jax.nn.softmax(jnp.where(CAUSAL, s, -jnp.inf)),
    "some keys": lambda s: jax.nn.softmax(jnp.where(KEYS, s, LEAST)),
    "for each example": lambda s: jax.nn.softmax(jnp.where(KEYS & CAUSAL, s, -1e9)),
    "masked where true": lambda s: jax.nn.softmax(jnp.where(~CAUSAL, -1e30, s)),
    "cast": lambda s: jax.nn.softmax(jnp.where(CAUSAL, s, -1e30).astype(jnp.bfloat16)),
    "selected by lax": lambda s: jax.nn.softmax(
        jax.lax.select(jnp.broadcast_to(CAUSAL, s.shape), s, jnp.full(s.shape, -1e30))
    ),
    "of numbers": lambda s: jax.nn.softmax(jnp.where((2.0 * KEYS) * CAUSAL, s, -1e30)),
    "all but one key": lambda s: jax.nn.softmax(jnp.where(jnp.arange(S) != 2, s, -1e30)),
    "broadcast by hand": lambda s: jax.nn.softmax(
        jnp.where(jnp.broadcast_to(CAUSAL, s.shape), s, -1e30)
    ),
    "written out": lambda s: softmax(jnp.where(CAUSAL, s, -1e30)),
    "in a vmap": jax.vmap(jax.vmap(lambda s: jax.nn.softmax(jnp.where(CAUSAL, s, -1e30)))),
    "in checkpointed layers": lambda s: jax.lax.scan(
        jax.checkpoint(lambda x, w: (jax.nn.softmax(jnp.where(CAUSAL, x * w, -1e30)), None)),
        s,
        jnp.array([1.0, 2.0]),
    )[0],
}
OTHERS = {
    "a mask as large as the scores": lambda s: jax.nn.softmax(jnp.where(s > -1, s, -1e30)),
    "a fill that weighs": lambda s: jax.nn.softmax(jnp.where(CAUSAL, s, -10.0)),
    "a fill that is computed": lambda s: jax.nn.softmax(jnp.where(CAUSAL, s, s.min() - 1e30)),
    "scores that are returned": lambda s: (m := jnp.where(CAUSAL, s, -1e30), softmax(m)),
    "no softmax": lambda s: jnp.tanh(jnp.where(CAUSAL, s, -1e30)),
    "no maximum but a sum": lambda s: jnp.where(CAUSAL, s, -1e30).sum(-1),
    "distances": lambda s: jnp.sum(jnp.abs(jnp.where(CAUSAL, s, -1e30) - 1)),
    "float16": lambda s: jax.nn.softmax(jnp.where(CAUSAL, s.astype(jnp.float16), -6e4)),
}


def masks_in(fun):
    closed = jax.make_jaxpr(fun)(SCORES)
    return closed, list(masked_scores(jax_compat.open_jaxpr(closed)))


@pytest.mark.integration
@pytest.mark.parametrize("name", MASKED)
def test_biases_are_the_same(name):
    fun = MASKED[name]
    closed, masks = masks_in(fun)
    assert len(masks) == 1
    made = with_biases(jax_compat.open_jaxpr(closed), masks)
    assert list(masked_scores(made)) == []
    rewritten = jax_compat.as_function(jax_compat.with_jaxpr(closed, made))
    expected = jax.value_and_grad(lambda s: jnp.sum(jnp.cos(SCORES * fun(s))))(SCORES)
    got = jax.value_and_grad(lambda s: jnp.sum(jnp.cos(SCORES * rewritten(s)[0])))(SCORES)
    np.testing.assert_allclose(got[0], expected[0], rtol=1e-5)
    np.testing.assert_allclose(got[1], expected[1], atol=1e-6)
    assert bool(jnp.any(expected[1] != 0))


@pytest.mark.parametrize("name", OTHERS)
def test_others_stay(name):
    assert masks_in(OTHERS[name])[1] == []


def layers(mask_of, written_out, checkpoint=jax.checkpoint):
    def layer(x, w):
        q, k, v = jnp.einsum("bse,nehd->nbhsd", x, w)
        scores = jnp.einsum("bhqd,bhkd->bhqk", q, k).astype(jnp.float32) / 8
        mask = mask_of(x.shape[1])
        if written_out:
            scores += jnp.where(mask, 0.0, -1e30)
        else:
            scores = jnp.where(mask, scores, -1e30)
        weights = jax.nn.softmax(scores).astype(x.dtype)
        return x + jnp.einsum("bhqk,bhkd->bqhd", weights, v).reshape(x.shape), None

    def loss(ws, x):
        return jnp.mean(jax.lax.scan(checkpoint(layer), x, ws)[0].astype(jnp.float32) ** 2)

    ws = jax.ShapeDtypeStruct((4, 3, 1024, 16, 64), jnp.bfloat16)
    return loss, (ws, jax.ShapeDtypeStruct((8, 2048, 1024), jnp.bfloat16))


def causal(written_out):
    return layers(lambda n: jnp.tril(jnp.ones((n, n), bool)), written_out)


def of_keys(written_out):
    return layers(lambda n: (jnp.arange(n) < n - 8)[None, None, None], written_out)


def with_dots_saved(written_out):
    saved = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
    return layers(
        lambda n: jnp.arange(n)[:, None] >= jnp.arange(n),
        written_out,
        lambda layer: jax.checkpoint(layer, policy=saved),
    )


PROGRAMS = [causal, of_keys, with_dots_saved]
ON_GPUS = [c for c in cases(PROGRAMS, [(causal, "gpu:h100")]) if "gpu" in c.values[1]]


@pytest.mark.parametrize(("program", "on"), ON_GPUS)
def test_biases_lower_xla_s_peak(program, on):
    made = peaks(program, "JXR849", on, by_hand=bool)
    assert made.fall > 0.2
    assert made.estimated_fall == pytest.approx(made.fall, abs=0.03)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("program", "on"),
    [
        (causal(True), "gpu:h100"),
        (causal(False), "tpu:v5e"),
    ],
    ids=["with a bias", "on a TPU"],
)
def test_nothing_is_said(program, on):
    fun, args = program
    assert "JXR849" not in {v.code for v in jaxresid.check(fun, on=on)(*args)}

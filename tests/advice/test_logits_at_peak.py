"""JXR830: what a loss takes whose logits are made for some of the tokens at a time."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

import jaxresid
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.findings.collect import collected
from jaxresid.inspector.findings.registry import proposing
from jaxresid.inspector.report import inspection

N, D, V = 2048, 64, 8192


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


ARGS = f32(D, V), f32(N, D), jax.ShapeDtypeStruct((N,), jnp.int32)


def cross_entropy(logits, labels):
    picked = jnp.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
    return jax.nn.logsumexp(logits, axis=-1) - picked


def loss(w, x, labels):
    return jnp.mean(cross_entropy(jnp.sin(x) @ w, labels))


def by_hand(chunks):
    def fun(w, x, labels):
        def loss_of_tokens(part):
            x, labels = part
            return cross_entropy(x @ w, labels)

        parts = jnp.sin(x).reshape(chunks, -1, D), labels.reshape(chunks, -1)
        body = jax.checkpoint(loss_of_tokens, prevent_cse=False)
        return jnp.mean(jax.lax.map(body, parts))

    return fun


def found(fun, *args, on="gpu:h100", **options):
    return [v for v in jaxresid.check(fun, on=on, **options)(*args) if v.code == "JXR830"]


def figures(report):
    return report.peak.nbytes, report.totals.computed_nbytes, report.cost.total.flops


def test_the_figures_are_those_of_the_same_code_by_hand():
    (violation,) = found(loss, *ARGS)
    measured = violation.measured
    before = jaxresid.inspect(loss, on="gpu:h100")(*ARGS)
    after = jaxresid.inspect(by_hand(measured["chunks"]), on="gpu:h100")(*ARGS)
    assert measured["peak_before_nbytes"] == before.peak.nbytes
    assert measured["peak_nbytes"] == pytest.approx(after.peak.nbytes, rel=0.02)
    assert measured["kept_nbytes"] == pytest.approx(after.totals.computed_nbytes, rel=0.02)
    more = figures(after)[2] - figures(before)[2]
    assert measured["recompute_flops"] == pytest.approx(more, rel=0.02)
    # One matmul of all tokens is made again.
    assert more == pytest.approx(2 * N * D * V, rel=0.25)


@pytest.mark.integration
def test_chunks_are_the_largest_that_cost_nothing():
    args = f32(D, V), f32(4 * N, D), jax.ShapeDtypeStruct((4 * N,), jnp.int32)
    (violation,) = found(loss, *args)
    peaks = {
        n: jaxresid.inspect(by_hand(n), on="gpu:h100")(*args).peak.nbytes
        for n in (2, 4, 8, 16, 32, 64)
    }
    least = peaks[64]  # of 128 tokens
    enough = least + 0.03 * (violation.measured["peak_before_nbytes"] - least)
    assert violation.measured["chunks"] == min(n for n, peak in peaks.items() if peak <= enough)
    assert 2 < violation.measured["chunks"] < 64


def test_it_is_at_the_matmul_and_names_the_loss():
    (violation,) = found(loss, *ARGS)
    code = loss.__code__
    assert violation.path.endswith("test_logits_at_peak.py")
    assert violation.span.row == code.co_firstlineno + 1
    line = cross_entropy.__code__.co_firstlineno + 2
    assert violation.measured["loss"].endswith(f"test_logits_at_peak.py:{line}")


@pytest.mark.parametrize("share", [0.02, 0.04])
def test_it_is_worth_a_word_from_3_percent_on(share):
    (violation,) = found(loss, *ARGS)
    seen = inspection(Question(loss, ARGS, on="gpu:h100"))
    least = violation.measured["peak_nbytes"]
    peak = dataclasses.replace(seen.report.peak, nbytes=int(least / (1 - share)))
    report = dataclasses.replace(seen.report, peak=peak)
    said = [each.finding.name for each in collected(proposing(seen.subject, report), [])]
    assert ("logits-at-peak" in said) == (share > 0.03)


@pytest.mark.integration
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["plain", "jitted"])
def test_in_a_training_step(wrap):
    def step(w, x, labels):
        value, gradient = jax.value_and_grad(loss)(w, x, labels)
        return w - 0.1 * gradient, value

    def step_by_hand(w, x, labels, chunks):
        value, gradient = jax.value_and_grad(by_hand(chunks))(w, x, labels)
        return w - 0.1 * gradient, value

    (violation,) = found(wrap(step), *ARGS)
    chunks = violation.measured["chunks"]
    after = jaxresid.inspect(lambda *a: step_by_hand(*a, chunks), on="gpu:h100")(*ARGS)
    assert violation.measured["peak_nbytes"] == pytest.approx(after.peak.nbytes, rel=0.02)
    assert violation.measured["kept_nbytes"] == pytest.approx(
        after.totals.computed_nbytes, rel=0.05
    )


def test_what_fits_the_vector_memory_of_a_tpu_is_left_alone():
    assert found(loss, *ARGS, on="tpu:v5e") == []
    more = f32(D, V), f32(4 * N, D), jax.ShapeDtypeStruct((4 * N,), jnp.int32)
    assert len(found(loss, *more, on="tpu:v5e")) == 1


def few_classes(w, x, labels):
    return jnp.mean(cross_entropy(x @ w[:, :10], labels % 10))


def by_hand_already(w, x, labels):
    return by_hand(8)(w, x, labels)


def with_logits(w, x, labels):
    logits = x @ w
    return jnp.mean(cross_entropy(logits, labels)), logits


def peak_elsewhere(w, x, labels):
    wide = jnp.tile(jnp.sin(x), (1, 2 * V // D))
    for _ in range(40):
        wide = jnp.sin(jnp.cos(wide))
    return jnp.mean(cross_entropy(x @ w, labels)) + jnp.sum(wide)


def under_a_checkpoint(w, x, labels):
    return jax.checkpoint(loss)(w, x, labels)


def attention(w, x, labels):
    return jnp.sum(jax.nn.softmax(x @ x.T) @ x)


def contrastive(w, x, labels):
    scores = x @ w
    return jnp.mean(jax.nn.logsumexp(scores, 0)) + jnp.mean(jax.nn.logsumexp(scores, 1))


def with_the_token_before(w, x, labels):
    logits = x @ w
    return jnp.mean(cross_entropy(logits + jnp.roll(logits, 1, axis=0), labels))


def squared_error(w, x, labels):
    return jnp.mean(jnp.square(x @ w - labels[:, None]))


def normalized_over_tokens(w, x, labels):
    logits = x @ w
    return jnp.mean(cross_entropy(logits / jnp.max(logits), labels))


@pytest.mark.parametrize(
    "fun",
    [
        *(few_classes, by_hand_already, with_logits, peak_elsewhere, under_a_checkpoint),
        *(attention, contrastive, with_the_token_before, squared_error, normalized_over_tokens),
    ],
)
def test_silent(fun):
    assert found(fun, *ARGS, has_aux=fun is with_logits) == []

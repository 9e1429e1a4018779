"""JXR841: attention scores at the peak, and what the program takes without them."""

import jax
import jax.numpy as jnp
import pytest

import jaxresid

B, N, H, D, L = 2, 512, 4, 16, 2
W = H * D


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def attend(q, k, v):
    weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k))
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


def in_parts(q, k, v, chunks=4):
    parts = jnp.moveaxis(q.reshape(B, chunks, -1, H, D), 1, 0)
    one = jax.checkpoint(lambda q: attend(q, k, v), prevent_cse=False)
    return jnp.moveaxis(jax.lax.map(one, parts), 0, 1).reshape(q.shape)


def block(x, w, attend):
    q, k, v = jnp.split((x @ w).reshape(*x.shape[:2], 3 * H, -1), 3, axis=2)
    return x + attend(q, k, v).reshape(x.shape)


def unrolled(attend):
    def loss(weights, x):
        for w in weights:
            x = block(x, w, attend)
        return jnp.sum(x**2)

    return loss


def scanned(attend):
    def loss(weights, x):
        x, _ = jax.lax.scan(lambda x, w: (block(x, w, attend), None), x, jnp.stack(weights))
        return jnp.sum(x**2)

    return loss


ARGS = [f32(W, 3 * W)] * L, f32(B, N, W)


def as_step(loss):
    def step(weights, x):
        value, gradients = jax.value_and_grad(loss)(weights, x)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients), value

    return step


def found(fun, *args, on="gpu:h100"):
    return [v for v in jaxresid.check(fun, on=on)(*args) if v.code == "JXR841"]


@pytest.mark.parametrize(
    ("made", "wrap"),
    [
        (unrolled, lambda f: f),
        pytest.param(scanned, lambda f: f, marks=pytest.mark.integration),
        pytest.param(scanned, as_step, marks=pytest.mark.integration),
    ],
    ids=["unrolled", "scanned", "step"],
)
def test_the_figures_are_those_of_the_same_code_by_hand(made, wrap):
    (violation,) = found(wrap(made(attend)), *ARGS)
    before, after = (
        jaxresid.inspect(wrap(made(f)), on="gpu:h100")(*ARGS) for f in (attend, in_parts)
    )
    measured = violation.measured
    assert (measured["queries"], measured["keys"], measured["chunks"]) == (N, N, 4)
    assert measured["calls"] == (L if made is unrolled else 1)
    assert measured["peak_before_nbytes"] == before.peak.nbytes
    assert measured["peak_nbytes"] == pytest.approx(after.peak.nbytes, rel=0.05)
    assert measured["kept_nbytes"] == pytest.approx(after.totals.computed_nbytes, rel=0.05)
    more = after.cost.total.flops - before.cost.total.flops
    assert measured["recompute_flops"] == pytest.approx(more, rel=0.05)


def test_it_is_at_the_scores():
    (violation,) = found(unrolled(attend), *ARGS)
    assert violation.span.row == attend.__code__.co_firstlineno + 1


def linear(q, k, v):
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.einsum("bqhd,bkhd->bhqk", q, k), v)


def with_weights(weights, x):
    """Read the weights of attention once more, all queries together."""
    q, k, v = jnp.split((x @ weights[0]).reshape(B, N, 3 * H, D), 3, axis=2)
    made = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k))
    return jnp.sum(jnp.einsum("bhqk,bkhd->bqhd", made, v)) + jnp.sum(jnp.cumsum(made, axis=2))


def windowed(q, k, v):
    """Attend within windows of queries."""
    q, k, v = (a.reshape(-1, 32, H, D) for a in (q, k, v))
    return attend(q, k, v).reshape(B, N, H, D)


def experts(weights, x):
    """Route tokens to experts: a softmax of few, and a batched matmul."""
    gates = jax.nn.softmax(jnp.einsum("bnd,de->bne", x, weights[0][:, :8]))
    made = jnp.einsum("bnd,edf->bnef", x, weights[0].reshape(8, W, -1))
    return jnp.sum(jnp.sin(jnp.einsum("bnef,bne->bnf", made, gates)) ** 2)


def contrastive(weights, x):
    """Compare all tokens with all others, and with no values."""
    scores = jnp.einsum("bqd,bkd->bqk", x @ weights[0], x @ weights[1])
    return jnp.sum(jax.nn.logsumexp(scores, axis=-1))


def beside_much(weights, x):
    return unrolled(attend)(weights[:1], x) + jnp.sum(weights[1])


def of_one_query(weights, x):
    """Attend with one query, as when decoding."""
    q, k, v = jnp.split((x @ weights[0]).reshape(B, N, 3 * H, D), 3, axis=2)
    return jnp.sum(attend(q[:, :1], k, v) ** 2)


SILENT = {
    "parts": lambda: (unrolled(in_parts), ARGS),
    "checkpoint": lambda: (unrolled(jax.checkpoint(attend)), ARGS),
    "no softmax": lambda: (unrolled(linear), ARGS),
    "weights read": lambda: (with_weights, ARGS),
    "windows": lambda: (unrolled(windowed), ARGS),
    "experts": lambda: (experts, ([f32(W, 8 * W)], ARGS[1])),
    "contrastive": lambda: (contrastive, ([f32(W, W)] * 2, ARGS[1])),
    "little": lambda: (beside_much, ([f32(W, 3 * W), f32(2**29)], ARGS[1])),
    "one query": lambda: (of_one_query, ARGS),
    "few keys": lambda: (unrolled(attend), ([f32(W, 3 * W)] * L, f32(128, 8, W))),
}


@pytest.mark.parametrize("name", SILENT)
def test_it_is_silent(name):
    fun, args = SILENT[name]()
    assert not found(fun, *args)


@pytest.mark.parametrize(
    "wrap",
    [lambda f: f, pytest.param(as_step, marks=pytest.mark.integration)],
    ids=["loss", "step"],
)
def test_a_plan_names_it_where_it_is_better(wrap):
    """No plan fits here, and the one with the lowest peak recomputes more."""
    fun = wrap(unrolled(attend))
    report = jaxresid.inspect(fun, on="gpu:h100")(*ARGS)
    measured = report.findings[0].measured
    plan = jaxresid.plan(fun, budget=report.peak.nbytes * 11 // 20, on="gpu:h100")(*ARGS)
    (remedy,) = (each for each in plan.lower_bound.remedies if each.kind == "rewrite")
    assert (remedy.peak_nbytes, remedy.answer) == (measured["peak_nbytes"], "fits")
    assert remedy.saved_nbytes == plan.estimate_nbytes - measured["peak_nbytes"]
    share = f"{measured['recompute_fraction']:.1%}"
    assert remedy.change.endswith(f"in place of this plan, recompute {share}")
    assert plan.recompute_fraction > measured["recompute_fraction"]
    assert plan.next_step.action == "change"
    assert plan.next_step.message.startswith("attention for 128 queries at a time (attention-scor")

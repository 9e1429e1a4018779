"""Attention of some queries at a time: it is found, and computes the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxresid import jax_compat
from jaxresid.inspector.jaxpr.nesting import eqns_in
from jaxresid.inspector.variants.rewrites.attention import attention_in
from jaxresid.inspector.variants.rewrites.chunked_logits import with_chunks
from jaxresid.inspector.variants.rewrites.logits import logits_in

B, N, M, H, D = 2, 8, 12, 4, 3
MASK = jnp.tril(jnp.ones((N, M), bool))


def einsums(q, k, v):
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 3
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)


def causal(q, k, v):
    scores = jnp.where(MASK, jnp.einsum("bqhd,bkhd->bhqk", q, k), -1e9)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)


def values_first(q, k, v):
    scores = jnp.einsum("bkhd,bqhd->bhkq", k, q)
    return jnp.einsum("bkhd,bhkq->bhdq", v, jax.nn.softmax(scores, axis=2))


def grouped(q, k, v):
    q = q.reshape(B, N, H // 2, 2, D)
    scores = 5 * jnp.tanh(jnp.einsum("bqhgd,bkhd->bhgqk", q, k[:, :, ::2]))
    return jnp.einsum("bhgqk,bkhd->bqhgd", jax.nn.softmax(scores), v[:, :, ::2])


def biased(q, k, v):
    bias = jnp.sin(jnp.arange(H * N * M, dtype=jnp.float32)).reshape(H, N, M)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) + bias
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)


def dropped(q, k, v):
    weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k))
    keep = jax.random.bernoulli(jax.random.key(1), 0.7, weights.shape)
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.where(keep, weights / 0.7, 0), v)


def mapped(q, k, v):
    one = lambda q, k, v: jax.nn.softmax(q @ k.T) @ v
    return jax.vmap(jax.vmap(one, 1, 1))(q, k, v)


def by_hand(q, k, v):
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k)
    e = jnp.exp(scores - jax.lax.stop_gradient(scores.max(-1, keepdims=True)))
    return jnp.einsum("bhqk,bkhd->bqhd", e, v) / e.sum(-1).swapaxes(1, 2)[..., None]


def from_jax(q, k, v):
    return jax.nn.dot_product_attention(q, k, v, mask=MASK[None, None])


def twice(q, k, v):
    return causal(jnp.sin(causal(q, k, v)), k, v)


FORMS = [
    *(einsums, causal, values_first, grouped, biased, dropped, mapped, by_hand, from_jax, twice),
]
RUN = [causal, values_first, grouped, mapped, by_hand, twice]


def arguments():
    keys = jax.random.split(jax.random.key(0), 3)
    shapes = [(B, N, H, D), (B, M, H, D), (B, M, H, D)]
    return [jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True)]


def found_in(fun):
    closed = jax.make_jaxpr(fun)(*arguments())
    return closed, list(attention_in(jax_compat.open_jaxpr(closed), B * H * N * M))


def most_scores(jaxpr):
    """Return the size of the biggest exponential."""
    return max(e.outvars[0].aval.size for e in eqns_in(jaxpr) if e.primitive.name == "exp")


def in_parts(fun):
    """Return attention with parts of the queries, before and as rewritten."""
    closed, found = found_in(fun)
    assert len(found) == (2 if fun is twice else 1)
    return closed, with_chunks(jax_compat.open_jaxpr(closed), found, 4)


@pytest.mark.integration
def test_the_parts_stand_where_the_attention_stood():
    def layers(q, k, v):
        for _ in range(3):
            q = q + einsums(q * v.sum(), k, v * k.max())[..., :D]
        return q

    closed, found = found_in(layers)
    made = with_chunks(jax_compat.open_jaxpr(closed), found, 4)
    names = [eqn.primitive.name for eqn in made.eqns]
    calls = [i for i, name in enumerate(names) if name == "jit"]
    first, *others = (names[a:b] for a, b in zip([0, *calls], calls, strict=False))
    assert len(calls) == 3
    assert others == [others[0]] * 2
    assert set(first) <= {"jit", *others[0]}


@pytest.mark.integration
@pytest.mark.parametrize("fun", FORMS)
def test_no_softmax_is_of_all_queries(fun):
    _, made = in_parts(fun)
    assert most_scores(made) == B * H * N * M // 4


@pytest.mark.integration
@pytest.mark.parametrize("fun", RUN)
def test_queries_at_a_time_compute_the_same(fun):
    closed, made = in_parts(fun)
    rewritten = jax_compat.as_function(jax_compat.with_jaxpr(closed, made))
    summed = lambda f: lambda *args: jnp.sum(jnp.sin(f(*args)))

    @jax.jit
    def both(*args):
        again = jax.value_and_grad(summed(lambda *a: rewritten(*a)[0]), (0, 1, 2))(*args)
        return again, jax.value_and_grad(summed(fun), (0, 1, 2))(*args)

    got, expected = both(*arguments())
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def without_softmax(q, k, v):
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.einsum("bqhd,bkhd->bhqk", q, k), v)


def with_scores(q, k, v):
    weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k))
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v), weights


def over_queries(q, k, v):
    weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k), axis=2)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


def mixed_heads(q, k, v):
    """Mix queries between the softmax and the values."""
    weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k))
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.cumsum(weights, axis=2), v)


def checkpointed(q, k, v):
    return jax.checkpoint(causal)(q, k, v)


def no_values(q, k, v):
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k)
    return jax.nn.logsumexp(scores, axis=-1)


@pytest.mark.parametrize(
    "fun", [without_softmax, with_scores, over_queries, mixed_heads, checkpointed, no_values]
)
def test_what_is_no_attention_of_single_queries_is_not_found(fun):
    assert not found_in(fun)[1]


@pytest.mark.parametrize("fun", [einsums, mapped])
def test_attention_is_no_loss_of_tokens(fun):
    closed, _ = found_in(fun)
    assert not list(logits_in(jax_compat.open_jaxpr(closed), 1))

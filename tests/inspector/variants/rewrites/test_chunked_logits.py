"""Losses whose logits are made in chunks: the same values and gradients as before."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxresid import jax_compat
from jaxresid.inspector.jaxpr.nesting import eqns_in
from jaxresid.inspector.variants.rewrites.chunked_logits import with_chunks
from jaxresid.inspector.variants.rewrites.logits import logits_in

B, T, D, V = 2, 8, 16, 64


def picked(scores, y):
    return jnp.take_along_axis(scores, y[..., None], axis=-1)[..., 0]


def cross_entropy(logits, y):
    return jax.nn.logsumexp(logits, axis=-1) - picked(logits, y)


def narrow(w, h, y):
    logits = (h.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16)).astype(jnp.float32)
    return cross_entropy(logits, y).mean()


def by_einsum(w, h, y):
    logits = jnp.einsum("btd,dv->btv", h, w)
    return -jnp.mean(jnp.sum(jax.nn.one_hot(y, V) * jax.nn.log_softmax(logits), axis=-1))


def transposed(w, h, y):
    scores = jnp.einsum("dv,btd->vbt", w, h)
    return jnp.mean(jax.nn.logsumexp(scores, axis=0) - picked(jnp.moveaxis(scores, 0, -1), y))


def shifted(w, h, y):
    return cross_entropy((h @ w)[:, :-1], y[:, 1:]).mean()


def flat(w, h, y):
    logits, y = h.reshape(-1, D) @ w, y.reshape(-1)
    lse = jax.nn.logsumexp(logits, axis=-1)
    loss = jnp.sum((lse - picked(logits, y)) * (y > 3)) / jnp.sum(y > 3)
    return loss + 1e-4 * jnp.mean(lse**2)


def merged(w, h, y):
    probabilities = jax.nn.softmax((h @ w).reshape(-1, V))
    return -jnp.mean(jnp.log(picked(probabilities, y.reshape(-1))))


def summed(w, h, y):
    return -jnp.sum(jax.nn.one_hot(y, V) * jax.nn.log_softmax(h @ w))


def contracted(w, h, y):
    log_probs = jax.nn.log_softmax(30 * jnp.tanh(h @ w / 30))
    return -jnp.einsum("btv,btv->", jax.nn.one_hot(y, V), log_probs)


def biased(w, h, y):
    logits = h @ w + jnp.cos(jnp.arange(V))
    accuracy = jnp.mean(jnp.argmax(logits, axis=-1) == y)
    return cross_entropy(logits, y).mean() + jax.lax.stop_gradient(accuracy)


def masked(w, h, y):
    logits = jnp.where(jnp.arange(V) < V - 3, h @ w, -1e9)
    return cross_entropy(logits, y).mean()


def cropped(w, h, y):
    return cross_entropy((h @ w)[..., : V // 2], y // 2).mean()


def smoothed(w, h, y):
    targets = 0.9 * jax.nn.one_hot(y, V) + 0.1 / V
    return -jnp.mean(jnp.sum(targets * jax.nn.log_softmax(h @ w), axis=-1))


def adapted(w, h, y):
    low = h[..., :2] @ w[:2]
    return cross_entropy(h @ w + low, y).mean()


def by_token(w, h, y):
    def one(h, y):
        return cross_entropy(h @ w, y)

    return jax.vmap(jax.vmap(one))(h, y).mean()


@jax.jit
def jitted(w, h, y):
    return jax.jit(by_einsum)(w, jnp.sin(h), y)


@jax.custom_vjp
def own_rule(logits, y):
    return cross_entropy(logits, y)


def _own_backward(kept, g):
    logits, y = kept
    return g[..., None] * (jax.nn.softmax(logits) - jax.nn.one_hot(y, V)), None


own_rule.defvjp(lambda logits, y: (cross_entropy(logits, y), (logits, y)), _own_backward)


def with_own_rule(w, h, y):
    return own_rule(h @ w, y).mean()


def in_a_loop(w, h, y):
    def body(total, part):
        h, y = part
        return total + cross_entropy(h @ w, y).sum(), None

    return jax.lax.scan(body, 0.0, (h, y))[0]


FORMS = [
    *(narrow, by_einsum, transposed, shifted, flat, merged, summed, contracted, biased, masked),
    *(cropped, smoothed, adapted, by_token, jitted, with_own_rule, in_a_loop),
]
# Into how many parts the tokens are divided, where that is not 2.
CHUNKS = {in_a_loop: 4}


def example():
    keys = jax.random.split(jax.random.key(0), 3)
    w, h = (jax.random.normal(k, s) for k, s in zip(keys, [(D, V), (B, T, D)], strict=False))
    return w, h, jax.random.randint(keys[2], (B, T), 0, V)


def found_in(fun, *args):
    closed = jax.make_jaxpr(fun)(*args)
    least = B * T * V * (1 if fun is in_a_loop else 2)
    return closed, list(logits_in(jax_compat.open_jaxpr(closed), least))


def sizes_of_products(jaxpr):
    found = (e for e in eqns_in(jaxpr) if e.primitive.name == "dot_general")
    return [e.outvars[0].aval.size for e in found]


def chunked(fun, *args):
    """Return a loss with its logits in chunks, as a function, and the products before and after."""
    closed, (logits, *_) = found_in(fun, *args)
    made = with_chunks(jax_compat.open_jaxpr(closed), [logits], CHUNKS.get(fun, 2))
    sizes = [sizes_of_products(j) for j in (jax_compat.open_jaxpr(closed), made)]
    return jax_compat.as_function(jax_compat.with_jaxpr(closed, made)), *sizes


@pytest.mark.integration
@pytest.mark.parametrize("fun", FORMS)
def test_no_product_is_of_all_tokens(fun):
    args = example()
    rewritten, before, after = chunked(fun, *args)
    assert max(after) * CHUNKS.get(fun, 2) == max(before)
    gradients = jax.eval_shape(jax.grad(lambda w, h, y: rewritten(w, h, y)[0], (0, 1)), *args)
    assert [g.shape for g in gradients] == [(D, V), (B, T, D)]


@pytest.mark.parametrize(
    "fun", [flat, *(pytest.param(f, marks=pytest.mark.integration) for f in FORMS if f is not flat)]
)
def test_chunks_compute_the_same(fun):
    rewritten, *_ = chunked(fun, *example())

    @jax.jit
    def both(w, h, y):
        again = jax.value_and_grad(lambda w, h: rewritten(w, h, y)[0], (0, 1))(w, h)
        return again, jax.value_and_grad(fun, (0, 1))(w, h, y)

    got, expected = both(*example())
    rtol, atol = (2e-2, 1e-3) if fun is narrow else (1e-4, 1e-5)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)


def returned(w, h, y):
    logits = h @ w
    return cross_entropy(logits, y).mean(), logits


def checkpointed(w, h, y):
    return jax.checkpoint(lambda w, h: cross_entropy(h @ w, y).mean())(w, h)


def attention(w, h, y):
    scores = h.reshape(B * T, D) @ h.reshape(B * T, D).T
    return jnp.sum(jax.nn.softmax(scores) @ h.reshape(B * T, D))


def contrastive(w, h, y):
    scores = h.reshape(-1, D) @ w
    return jnp.mean(jax.nn.logsumexp(scores, axis=0)) + jnp.mean(jax.nn.logsumexp(scores, axis=1))


def regularized(w, h, y):
    logits = h @ w
    return cross_entropy(logits, y).mean() + jnp.sum(jnp.sin(jnp.mean(logits, axis=(0, 1))))


def normalized_over_tokens(w, h, y):
    logits = h @ w
    return cross_entropy(logits / jnp.std(logits), y).mean()


def scored_by_the_token_before(w, h, y):
    logits = h @ w
    return cross_entropy(logits + jnp.roll(logits, (1, 1), axis=(0, 1)), y).mean()


def summed_over_words(w, h, y):
    return jnp.mean(jnp.sum(jnp.square(h @ w), axis=-1))


def sampled(w, h, y):
    logits = h @ w
    best = jax.lax.top_k(logits, 2)[0]
    return cross_entropy(logits, y).mean() + jnp.mean(best)


def feeding_another_layer(w, h, y):
    return jnp.sum(jax.nn.softmax(h @ w) @ w.T)


SILENT = [
    *(returned, checkpointed, attention, contrastive, regularized, normalized_over_tokens),
    *(scored_by_the_token_before, summed_over_words, sampled, feeding_another_layer),
]


@pytest.mark.parametrize("fun", SILENT)
def test_scores_that_are_needed_together_are_left_alone(fun):
    _, found = found_in(fun, *example())
    assert found == []

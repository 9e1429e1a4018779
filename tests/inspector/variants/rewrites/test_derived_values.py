"""Loops whose backward pass makes masks, bits and casts again: the same values and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxresid import jax_compat
from jaxresid.inspector.variants.rewrites.derived_values import derived_in, made_again, plain

L, B, D = 4, 6, 8
BF16 = jnp.bfloat16


def casts(ws, x, ids, key):
    def body(x, w):
        return jnp.tanh(x.astype(BF16) @ w.astype(BF16)).astype(jnp.float32), None

    return jnp.sum(jax.lax.scan(body, x, ws)[0])


def scaled(ws, x, ids, key):
    return jnp.sum(jax.lax.scan(lambda x, w: (x @ jnp.exp(-w).T, None), x, ws)[0])


def masks(ws, x, ids, key):
    def body(carry, w):
        x, ids = carry
        return (jnp.where(ids[:, None] == jnp.arange(D), x @ w, 0.5), ids + 1), None

    return jnp.sum(jax.lax.scan(body, (x, ids), ws)[0][0])


def rotary(ws, x, ids, key):
    def body(carry, w):
        x, ids = carry
        angle = ids[:, None] / 10.0 ** jnp.arange(D)
        return (jnp.cos(angle) * (x @ w) + jnp.sin(angle), ids + 1), None

    return jnp.sum(jax.lax.scan(body, (x, ids), ws)[0][0] ** 2)


def one_hots(ws, x, ids, key):
    def body(x, w):
        chosen = jax.nn.one_hot(jnp.argmax(x @ w, -1), D)
        return x @ w + chosen * x, None

    return jnp.sum(jax.lax.scan(body, x, ws)[0])


def dropout_bits(ws, x, ids, key):
    def body(x, slices):
        w, key = slices
        keep = jax.random.bernoulli(key, 0.5, x.shape)
        return jnp.where(keep, x @ w / 0.5, 0), None

    return jnp.sum(jax.lax.scan(body, x, (ws, jax.random.split(key, L)))[0])


def nested(ws, x, ids, key):
    def outer(x, w):
        return jax.lax.scan(lambda x, v: (x @ (v.astype(BF16) * w[0]), None), x, ws)[0], None

    return jnp.sum(jax.lax.scan(outer, x, ws)[0])


@jax.jit
def jitted(ws, x, ids, key):
    return jax.jit(dropout_bits)(ws, x, ids, key) + jax.jit(casts)(ws, x, ids, key)


FORMS = {
    casts: {"arguments"},
    scaled: {"arguments"},
    masks: {"integers"},
    rotary: {"integers"},
    one_hots: {"integers"},
    dropout_bits: {"keys"},
    nested: {"arguments"},
    jitted: {"arguments", "keys"},
}


def arrays():
    keys = jax.random.split(jax.random.key(0), 2)
    ws = jax.random.normal(keys[0], (L, D, D)) / 3
    return ws, jax.random.normal(keys[1], (B, D)), jnp.arange(B) % 3, jax.random.key(1)


def found_in(fun):
    closed = jax.make_jaxpr(fun)(*arrays())
    flat = plain(jax_compat.open_jaxpr(closed))
    return closed, flat, list(derived_in(flat))


@pytest.mark.integration
@pytest.mark.parametrize("fun", FORMS)
def test_what_they_are_made_of(fun):
    found = found_in(fun)[2]
    assert {each.source for each in found} == FORMS[fun]
    assert all(each.kind[2][0] == L for each in found)


@pytest.mark.parametrize(
    "fun", [rotary, *(pytest.param(f, marks=pytest.mark.integration) for f in FORMS if f != rotary)]
)
def test_the_rest_computes_the_same(fun):
    closed, flat, found = found_in(fun)
    rewritten = jax_compat.as_function(jax_compat.with_jaxpr(closed, made_again(flat, found)))

    @jax.jit
    def both(ws, x, ids, key):
        again = jax.value_and_grad(lambda ws, x: rewritten(ws, x, ids, key)[0], (0, 1))(ws, x)
        return again, jax.value_and_grad(fun, (0, 1))(ws, x, ids, key)

    got, expected = both(*arrays())
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-2, atol=1e-3)


def residuals_of(fun, *args):
    _, vjp = jax.eval_shape(
        lambda ws, x: jax.vjp(lambda ws, x: fun(ws, x, *args[2:]), ws, x), *args[:2]
    )
    return sorted((str(v.dtype), v.shape) for v in jax.tree.leaves(vjp))


@pytest.mark.parametrize("fun", [casts, masks, dropout_bits])
def test_they_are_no_residuals_then(fun):
    closed, flat, found = found_in(fun)
    rewritten = jax_compat.as_function(jax_compat.with_jaxpr(closed, made_again(flat, found)))
    args = arrays()
    kept = residuals_of(lambda *a: rewritten(*a)[0], *args)
    (kind,) = {(each.kind[1], each.kind[2]) for each in found}
    assert kind in residuals_of(fun, *args)
    assert kind not in kept


def of_activations(ws, x, ids, key):
    return jnp.sum(jax.lax.scan(lambda x, w: (jnp.where(x @ w > 0, x, 0.1), None), x, ws)[0])


def cast_activations(ws, x, ids, key):
    return jnp.sum(
        jax.lax.scan(lambda x, w: ((x.astype(BF16) @ w).astype(x.dtype), None), x, ws)[0]
    )


def normalised(ws, x, ids, key):
    return jnp.sum(jax.lax.scan(lambda x, w: (x @ (w / jnp.sum(w)), None), x, ws)[0])


def embedded(ws, x, ids, key):
    return jnp.sum(jax.lax.scan(lambda x, w: (jnp.sin(x) * w[ids], None), x, ws)[0])


def numbers_alone(ws, x, ids, key):
    def body(x, w):
        return jnp.where(jnp.arange(B)[:, None] >= jnp.arange(D), x @ w, 0), None

    return jnp.sum(jax.lax.scan(body, x, ws)[0])


def as_they_are(ws, x, ids, key):
    return jnp.sum(jax.lax.scan(lambda x, w: (x @ w, None), x, ws)[0])


def under_a_checkpoint(ws, x, ids, key):
    def body(x, w):
        return (x.astype(BF16) @ w.astype(BF16)).astype(x.dtype), None

    return jnp.sum(jax.lax.scan(jax.checkpoint(body), x, ws)[0])


def unrolled(ws, x, ids, key):
    for i in range(L):
        x = (x.astype(BF16) @ ws[i].astype(BF16)).astype(x.dtype)
    return jnp.sum(x)


def outside(ws, x, ids, key):
    narrow, keep = ws.astype(BF16), jax.random.bernoulli(key, 0.5, x.shape)
    body = lambda x, w: (jnp.where(keep, x @ w, 0).astype(x.dtype), None)
    return jnp.sum(jax.lax.scan(body, x, narrow)[0])


@jax.custom_vjp
def own_rule(x, w):
    return x @ w


own_rule.defvjp(lambda x, w: (x @ w, (x, w)), lambda kept, g: (g @ kept[1].T, kept[0].T @ g))


def with_a_rule_of_its_own(ws, x, ids, key):
    body = lambda x, w: (own_rule(x, w.astype(BF16).astype(x.dtype)), None)
    return jnp.sum(jax.lax.scan(body, x, ws)[0])


def mixed(ws, x, ids, key):
    def body(x, w):
        return x @ (w * jnp.mean(x)), None

    return jnp.sum(jax.lax.scan(body, x, ws)[0])


SILENT = [
    *(cast_activations, normalised, embedded, numbers_alone, as_they_are, under_a_checkpoint),
    *(unrolled, outside, with_a_rule_of_its_own, of_activations, mixed),
]


@pytest.mark.parametrize("fun", SILENT)
def test_none_is_seen_where_it_is_not_cheap(fun):
    found = [each for each in found_in(fun)[2] if each.var.aval.size > B]
    assert found == []

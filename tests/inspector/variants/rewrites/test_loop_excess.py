"""Loops without what they need not stack or carry: the same values and gradients as before."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxresid import jax_compat
from jaxresid.inspector.variants.rewrites.loop_excess import excesses_in, without_excess

L, B, D = 4, 3, 5


def layer(x, w):
    return x + jnp.tanh(x @ w)


def scanned(body, init, ws, **options):
    return jax.lax.scan(jax.checkpoint(body), init, ws, **options)


def copies(ws, x):
    x, again = scanned(lambda x, w: (layer(x, w), w), x, ws)
    return jnp.sum(x * jnp.sum(again) + again[1, 0, 0])


def reversed_copies(ws, x):
    x, again = scanned(lambda x, w: (layer(x, w), w), x, ws, reverse=True)
    return jnp.sum(x) + jnp.sum(again * jnp.arange(1.0, L + 1)[:, None, None])


def repeats(ws, x):
    table = jnp.cos(x)
    x, tables = scanned(lambda x, w: (layer(x, w) * table, table), x, ws)
    return jnp.sum(x) + jnp.sum(tables * jnp.arange(1.0, L + 1)[:, None, None])


def last_carry(ws, x):
    def body(x, w):
        x = layer(x, w)
        return x, x

    return jnp.sum(scanned(body, x, ws)[1][-1])


def last_of_others(ws, x):
    def body(x, w):
        x = layer(x, w)
        return x, (x * x, jnp.sin(x))

    x, (squares, sines) = scanned(body, x, ws)
    return jnp.sum(squares[-1] * sines[L - 1 :]) + jnp.sum(x)


def last_of_reverse(ws, x):
    def body(x, w):
        x = layer(x, w)
        return x, jnp.cos(x)

    return jnp.sum(scanned(body, x, ws, reverse=True)[1][0])


def before_the_last(ws, x):
    return jnp.sum(scanned(lambda x, w: (layer(x, w), x), x, ws)[1][-1])


def fixed(ws, x):
    def body(carry, w):
        x, i, m = carry
        return (layer(x, w) * m, i + 1, m), None

    (x, i, m), _ = scanned(body, (x, 0, jnp.cos(x)), ws)
    return jnp.sum(x + m) * i


def fixed_and_stacked(ws, x):
    def body(carry, w):
        x, m = carry
        return (layer(x, w) * m, m), m

    (x, m), stack = scanned(body, (x, jnp.cos(x)), ws)
    return jnp.sum(x + m) + jnp.sum(stack * jnp.arange(1.0, L + 1)[:, None, None])


def nested(ws, x):
    def outer(carry, w):
        x, m = carry
        (y, _), again = scanned(lambda c, v: ((layer(c[0], w) * v, c[1]), v), (x, m), m)
        return (y + jnp.sum(again), m), None

    return jnp.sum(scanned(outer, (x, jnp.cos(x)), ws)[0][0])


@jax.jit
def jitted(ws, x):
    return jax.jit(fixed)(ws, x) + jnp.sum(jax.vmap(lambda v: fixed(ws, v))(x))


def moments(ws, x):
    def body(x, w):
        x = layer(x, w)
        return x, (x, x > 0, jnp.cos(x).astype(jnp.bfloat16))

    _, (xs, positive, cosines) = scanned(body, x, ws)
    variance = (xs**2).mean(0) - xs.mean(0) ** 2
    highest = jnp.max(2 * xs - 99) + jnp.sum(jnp.min(xs + 9, axis=(0, 2))) + jnp.sum(cosines)
    return jnp.sum(jnp.where(jnp.any(positive, 0) & jnp.all(xs < 9, 0), variance, 0)) + highest


def products(ws, x):
    def body(x, w):
        x = layer(x, w)
        return x, (x, jnp.sin(x))

    _, (xs, sines) = scanned(body, x, ws, reverse=True)
    return jnp.sum(xs * sines) + jnp.sum(jnp.prod(sines, axis=0))


FORMS = [
    *(copies, reversed_copies, repeats, last_carry, last_of_others, last_of_reverse),
    *(before_the_last, fixed, fixed_and_stacked, nested, jitted, moments, products),
]


def arrays():
    keys = jax.random.split(jax.random.key(0), 2)
    return jax.random.normal(keys[0], (L, D, D)) / D, jax.random.normal(keys[1], (B, D))


def found_in(fun):
    closed = jax.make_jaxpr(fun)(*arrays())
    return closed, list(excesses_in(jax_compat.open_jaxpr(closed)))


@pytest.mark.parametrize(
    "fun",
    [nested, *(pytest.param(f, marks=pytest.mark.integration) for f in FORMS if f is not nested)],
)
def test_the_rest_computes_the_same(fun):
    closed, found = found_in(fun)
    made = without_excess(jax_compat.open_jaxpr(closed), found)
    rewritten = jax_compat.as_function(jax_compat.with_jaxpr(closed, made))
    assert list(excesses_in(made)) == []

    @jax.jit
    def both(ws, x):
        again = jax.value_and_grad(lambda ws, x: rewritten(ws, x)[0], (0, 1))(ws, x)
        return again, jax.value_and_grad(fun, (0, 1))(ws, x)

    got, expected = both(*arrays())
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("fun", "nbytes"),
    [
        (copies, L * D * D * 4),
        (repeats, L * B * D * 4),
        (last_of_others, 2 * L * B * D * 4),
        (fixed, L * B * D * 4),
        (fixed_and_stacked, 2 * L * B * D * 4),
        (moments, L * B * D * (4 + 1 + 2)),
        (products, 2 * L * B * D * 4),
    ],
)
def test_its_bytes(fun, nbytes):
    (found,) = found_in(fun)[1]
    assert found.nbytes == nbytes


def test_what_is_stacked_and_carried_needs_no_carry_of_its_own():
    closed, found = found_in(last_carry)
    made = without_excess(jax_compat.open_jaxpr(closed), found)
    (scan,) = [eqn for eqn in made.eqns if eqn.primitive.name == "scan"]
    assert [v.aval.shape for v in scan.outvars] == [(B, D)]


def sorted_stack(ws, x):
    return jnp.median(scanned(lambda x, w: (layer(x, w), x), x, ws)[1])


def reduced_and_returned(ws, x):
    squares = scanned(lambda x, w: (layer(x, w), x), x, ws)[1] ** 2
    return jnp.sum(squares), squares


def reduced_along_another_axis(ws, x):
    return jnp.sum(scanned(lambda x, w: (layer(x, w), x), x, ws)[1], axis=1)


def weighted(ws, x):
    stack = scanned(lambda x, w: (layer(x, w), x), x, ws)[1]
    return jnp.sum(stack * jnp.arange(1.0, L + 1)[:, None, None])


def read_in_the_middle(ws, x):
    return jnp.sum(scanned(lambda x, w: (layer(x, w), x), x, ws)[1][1])


def read_twice(ws, x):
    stack = scanned(lambda x, w: (layer(x, w), x), x, ws)[1]
    return jnp.sum(stack[-1]) + jnp.sum(stack)


def last_two(ws, x):
    return jnp.sum(scanned(lambda x, w: (layer(x, w), x), x, ws)[1][-2:])


def returned(ws, x):
    stack = scanned(lambda x, w: (layer(x, w), x), x, ws)[1]
    return jnp.sum(stack[-1]), stack


def last_by_place_in_reverse(ws, x):
    return jnp.sum(scanned(lambda x, w: (layer(x, w), x), x, ws, reverse=True)[1][-1])


def updated(ws, x):
    x, again = scanned(lambda x, w: (layer(x, w), 0.9 * w), x, ws)
    return jnp.sum(x) + jnp.median(again)


def swapped(ws, x):
    def body(carry, w):
        a, b = carry
        return (b, a), jnp.sum(a @ w)

    return jnp.median(scanned(body, (x, jnp.cos(x)), ws)[1])


def changed_once(ws, x):
    def body(carry, w):
        x, m = carry
        return (layer(x, w) * m, jax.lax.cond(w[0, 0] > 0, jnp.sin, lambda m: m, m)), None

    return jnp.sum(scanned(body, (x, jnp.cos(x)), ws)[0][0])


def stopped(ws, x):
    def body(carry, w):
        x, m = carry
        return (layer(x, w) * m, jax.lax.stop_gradient(m)), None

    return jnp.sum(scanned(body, (x, jnp.cos(x)), ws)[0][0])


@jax.custom_vjp
def clipped(m):
    return m


clipped.defvjp(lambda m: (m, None), lambda _, g: (jnp.clip(g, -1, 1),))


def with_a_rule_of_its_own(ws, x):
    def body(carry, w):
        x, m = carry
        return (layer(x, w) * m, clipped(m)), None

    return jnp.sum(scanned(body, (x, jnp.cos(x)), ws)[0][0])


def seen_by_jax(ws, x):
    def body(carry, w):
        x, m = carry
        return (layer(x, w) * m, m), w

    (x, m), again = jax.lax.scan(body, (x, jnp.cos(x)), ws)
    return jnp.sum(x + m) + jnp.sum(again)


def of_one_trip(ws, x):
    return fixed(ws[:1], x)


def unread(ws, x):
    return jnp.sum(scanned(lambda x, w: (layer(x, w), jnp.sin(x)), x, ws)[0])


SILENT = [
    *(read_in_the_middle, read_twice, last_two, returned, last_by_place_in_reverse, updated),
    *(sorted_stack, reduced_and_returned, reduced_along_another_axis, weighted),
    *(swapped, changed_once, stopped, with_a_rule_of_its_own, seen_by_jax, of_one_trip, unread),
]


@pytest.mark.parametrize("fun", SILENT)
def test_none_is_seen_where_it_is_needed(fun):
    assert found_in(fun)[1] == []

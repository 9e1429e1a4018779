"""Which arguments a program without a gradient returns updated, and which only look like it."""

import jax
import jax.numpy as jnp
import pytest

import jaxresid
from tests.programs_without_gradient import DECODE, GENERATE, decode, f32, generate, i32, report

X = f32((8, 4))
STATE = {"x": X, "v": X}


def updated(fun, *args):
    """The arguments that come back updated, each with the path of its next value."""
    result = jaxresid.inspect(fun, mode="program", on="gpu:h100")(*args)
    assert not result.target.has_gradient
    return {a.path: a.counterpart for a in result.arguments if a.counterpart is not None}


def rolled(cache, x):
    return x.sum(0), jnp.concatenate([cache[1:], x[None, 0]])


def layers(ws, x):
    return jax.lax.scan(lambda x, w: (x + jnp.tanh(x @ w), None), x, ws)[0]


def alternating(x, flag):
    return jax.lax.cond(flag, lambda x: x.at[0].set(1), lambda x: x * flag, x)


@pytest.mark.parametrize(
    ("fun", "args", "expected"),
    [
        (decode, DECODE, {"cache[0]": "[1][0]", "cache[1]": "[1][1]"}),
        (generate, GENERATE, {"cache": "[0]", "token": "[1]"}),
        (
            lambda s: ({"x": s["x"] + s["v"], "v": s["v"] * 2}, 1.0),
            [STATE],
            {"s['x']": "[0]['x']", "s['v']": "[0]['v']"},
        ),
        (lambda x, v: (x + v, v - x), [X, X], {"x": "[0]", "v": "[1]"}),
        (lambda x, i: x.at[i].set(0), [X, i32((2,))], {"x": ""}),
        (lambda x: jax.lax.fori_loop(0, 9, lambda i, x: jnp.sin(x), x), [X], {"x": ""}),
        (
            lambda x, where: jnp.where(where, 0.0, x),
            [X, jax.ShapeDtypeStruct((8, 1), bool)],
            {"x": ""},
        ),
        (alternating, [X, jax.ShapeDtypeStruct((), bool)], {"x": ""}),
        (jax.jit(lambda x, i: x.at[i].add(1.0)), [X, i32((2,))], {"x": ""}),
        # What only has the shape of an argument is no next value of it.
        (layers, [f32((3, 4, 4)), X], {}),
        (lambda x, w: x + jnp.tanh(x @ w), [X, f32((4, 4))], {}),
        (lambda w, x: (w, x @ w), [f32((4, 4)), X], {}),  # as it is, not updated
        (lambda key: jax.random.normal(key, (8, 4)), [jax.random.key(0)], {}),
    ],
)
def test_next_values(fun, args, expected):
    assert updated(fun, *args) == expected


def test_a_loop_over_layers_that_writes_into_its_state_returns_it_updated():
    def fun(ws, x):
        return jax.lax.scan(lambda x, w: (x.at[0].set((x @ w)[1]), None), x, ws)[0]

    assert updated(fun, f32((3, 4, 4)), X) == {"x": ""}


def test_a_donated_argument_is_the_same_bytes_as_its_next_value():
    given = report("decode_donated")
    kept = report("decode")
    nbytes = 2 * 4 * 8 * 1024 * 64 * 4
    assert [a.is_donated for a in given.arguments if a.counterpart] == [True, True]
    assert kept.peak.nbytes - given.peak.nbytes == nbytes
    assert dict(given.peak.breakdown)["state"] == nbytes
    assert [(a.kind, a.counterpart) for a in given.outputs] == [
        ("output", None),
        ("state", "cache[0]"),
        ("state", "cache[1]"),
    ]
    # At the peak the state has the name that the caller knows it by.
    state = [v for v in given.peak.live if v.kind == "state"]
    assert [(v.path, v.primitive) for v in state] == [("cache[0]", None), ("cache[1]", None)]


def test_a_cache_that_is_not_donated_is_a_finding():
    assert [f.name for f in report("decode").findings] == ["missing-donation"]
    assert report("decode_donated").findings == ()

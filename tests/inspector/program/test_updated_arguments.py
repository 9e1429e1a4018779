"""Which arguments a program without a gradient returns updated, and which only look like it."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
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


def updated_by_name(fun, **named):
    """As `updated`, of a call by keywords."""
    result = jaxresid.inspect(fun, mode="program", on="gpu:h100")(**named)
    return {a.path: a.counterpart for a in result.arguments if a.counterpart is not None}


class Particles(NamedTuple):
    position: jax.Array
    velocity: jax.Array


def moved(state):
    velocity = state.velocity - jnp.sin(state.position)
    return Particles(state.position + 0.1 * velocity, velocity)


def laplacian(u):
    return jnp.roll(u, 1, 0) + jnp.roll(u, -1, 0) - 2 * u


def diffused(u, rate=0.1):
    return u + rate * laplacian(u)


def runge_kutta(u):
    first = laplacian(u)
    second = laplacian(u + 0.05 * first)
    return 0.99 * u + 0.1 / 6 * (first + 2 * second)


def attracted(x, masses):
    apart = x[:, None] - x[None]
    return x - 0.1 * jnp.einsum("j,ijd->id", masses, jnp.sin(apart))


def filtered(psi):
    phase = jnp.exp(-1j * jnp.arange(8.0))[:, None]
    return jnp.fft.ifft(jnp.fft.fft(phase * psi) * phase)


def convolved(u):
    stencil = jnp.array([[0.0, 1, 0], [1, -4, 1], [0, 1, 0]])
    return u + 0.1 * jax.scipy.signal.convolve2d(u, stencil, mode="same")


def block(x, w):
    return x + jnp.tanh(x @ w)


def convolution_block(x, w):
    return x + jax.lax.conv(x, w, (1, 1), "SAME")


def normalised(x, scale):
    return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True)) * scale


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
        # One array with something added to it, scaled, or put beside itself.
        (diffused, [X], {"u": ""}),
        (runge_kutta, [X], {"u": ""}),
        (convolved, [X], {"u": ""}),
        (attracted, [X, f32((8,))], {"x": ""}),
        (filtered, [jax.ShapeDtypeStruct((8, 4), jnp.complex64)], {"psi": ""}),
        (lambda x: jnp.mod(x + jnp.sin(x), 1.0), [X], {"x": ""}),
        (lambda u, force: u + 0.1 * (laplacian(u) + force), [X, X], {"u": ""}),
        (lambda u, key: u + jax.random.normal(key, (8, 4)), [X, jax.random.key(0)], {"u": ""}),
        (lambda u: {"u": diffused(u), "norm": (u**2).sum()}, [X], {"u": "['u']"}),
        (
            lambda cache, x: (x.sum(0), jnp.concatenate([cache[1:], x])),
            [X, f32((1, 4))],
            {"cache": "[1]"},
        ),
        (lambda s: (s[0] + s[1], s[1] * 2), [(X, X)], {"s[0]": "[0]", "s[1]": "[1]"}),
        (moved, [Particles(X, X)], {"state.position": ".position", "state.velocity": ".velocity"}),
        # What only has the shape of an argument is no next value of it.
        (layers, [f32((3, 4, 4)), X], {}),
        (block, [X, f32((4, 4))], {}),
        (functools.partial(block, w=np.ones((4, 4), np.float32)), [X], {}),
        (convolution_block, [f32((1, 4, 8, 8)), f32((4, 4, 3, 3))], {}),
        (normalised, [X, f32((4,))], {}),
        (jax.nn.softmax, [X], {}),
        (lambda x, y: x + y, [X, X], {}),  # of either
        (lambda u: diffused(u).astype(jnp.bfloat16), [X], {}),
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


def test_an_array_by_keyword_comes_back_updated():
    assert updated_by_name(diffused, u=X) == {"u": ""}


def oscillated(x):
    return x + 0.1 * jnp.sin(x)


@pytest.mark.parametrize(
    ("fun", "args"),
    [(oscillated, [f32((64, 64))]), (moved, [Particles(*[f32((64, 64))] * 2)])],
    ids=["array", "tuple"],
)
def test_what_donation_saves_is_what_xla_aliases(fun, args):
    result = jaxresid.inspect(fun, mode="program", on="gpu:h100")(*args)
    (found,) = [f for f in result.findings if f.name == "missing-donation"]

    def memory(**options):
        return jax.jit(fun, **options).lower(*args).compile().memory_analysis()

    donated = memory(donate_argnums=tuple(found.measured["argnums"]))
    nbytes = sum(leaf.size * 4 for leaf in jax.tree.leaves(args))
    assert donated.alias_size_in_bytes == found.measured["nbytes"] == nbytes
    if fun is oscillated:
        peaks = [m.temp_size_in_bytes - m.alias_size_in_bytes for m in (memory(), donated)]
        assert peaks[0] - peaks[1] == found.measured["saved_nbytes"]


def test_neighbours_are_read_before_they_are_written_over():
    """On an H100 XLA copies: 512 MiB of two arrays of 256 MiB each, donated or not."""
    for fun in (diffused, runge_kutta):
        result = jaxresid.inspect(jax.jit(fun, donate_argnums=0), on="gpu:h100")(f32((64, 64)))
        assert (result.peak.nbytes, result.peak.aliased_nbytes) == (2 * 64 * 64 * 4, 64 * 64 * 4)


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

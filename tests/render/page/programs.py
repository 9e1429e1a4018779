"""Results to make pages of, and Chromium to look at them."""

import functools
import shutil

import jax
import jax.numpy as jnp
import pytest

import jaxresid
from jaxresid.results import Aval, Lifetime, Lifetimes, LiveValue, Location, ProgramPoint, Source

HOSTILE = "</script><img src=x onerror=document.title='broken'>\x1b[31m\u202e<!--"


def layer(w, x):
    return jnp.tanh(jnp.sin(x @ w) @ w.T)


def loss(ws, x):
    for w in ws:
        x = jax.checkpoint(layer)(w, x)
    return (x**2).sum()


@functools.cache
def report(lifetimes=True):
    ws = [jax.ShapeDtypeStruct((512, 512), jnp.float32)] * 3
    x = jax.ShapeDtypeStruct((256, 512), jnp.float32)
    return jaxresid.inspect(loss, on="gpu:h100", lifetimes=lifetimes)(ws, x)


@functools.cache
def comparison():
    ws = [jax.ShapeDtypeStruct((512, 512), jnp.float32)] * 3
    x = jax.ShapeDtypeStruct((256, 512), jnp.float32)
    return jaxresid.compare(loss, on="gpu:h100", lifetimes=True)(ws, x)


@functools.cache
def plan():
    ws = [jax.ShapeDtypeStruct((512, 512), jnp.float32)] * 3
    x = jax.ShapeDtypeStruct((256, 512), jnp.float32)
    return jaxresid.plan(loss, budget="64MiB", on="gpu:h100", lifetimes=True)(ws, x)


def lifetimes(count, *, name=""):
    """A program of `count` values: half of them wait for the backward pass, half go at once."""
    ops = count
    values = []
    for i in range(count):
        place = Location(f"model_{i % 7}.py", i % 90 + 1, 4, f"layer_{i % 5}", f"x = f_{i}(x)")
        stop = min(ops, ops - i // 2 if i % 2 else i + 2)
        live = LiveValue(
            "residual" if i % 2 else "temporary",
            1024 * (1 + i % 100),
            Aval("float32", (1 + i % 100, 256), 4),
            primitive="dot_general",
            source=Source(place, scope=f"net/block_{i % 12}"),
            phase="forward",
        )
        values.append(Lifetime(i, max(stop, i + 1), live, live.kind, Source(place)))
    sums = [0] * (ops + 1)
    for value in values:
        sums[value.start] += value.live.nbytes
        sums[value.stop] -= value.live.nbytes
    for i in range(1, ops):
        sums[i] += sums[i - 1]
    points = tuple(
        ProgramPoint(
            "dot_general", values[i].live.source, "forward" if 2 * i < ops else "backward", n
        )
        for i, n in enumerate(sums[:ops])
    )
    at = max(range(ops), key=lambda i: points[i].nbytes)
    return Lifetimes(name, points, tuple(values), at, points[at].nbytes)


def chromium():
    """The Chromium of this machine; skips the test where there is none."""
    sync_api = pytest.importorskip("playwright.sync_api")
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        pytest.skip("no chromium here")
    return sync_api, found

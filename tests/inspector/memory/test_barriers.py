"""Compilers that undo checkpoints: what the table says of this one, and what follows from it."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import jaxresid
from jaxresid import jax_compat
from jaxresid.advice.check.verdict_rules import verdict_finding
from jaxresid.advice.compare.compare import WRITTEN
from jaxresid.inspector.memory.compiler_versions import MEASURED, cpu_compiler, not_measured
from jaxresid.inspector.memory.compilers import profile_of
from jaxresid.model import Verdict
from jaxresid.xla.places import parse_place
from tests.benchmarks import barriers

UNDOES, KEEPS = "0.10.2", "0.12.0.1"
W = jax.ShapeDtypeStruct((128, 128), jnp.float32)
X = jax.ShapeDtypeStruct((2048, 128), jnp.float32)
WS = [W] * 6
MIB = 2**20


def layer(h, w):
    return h + jnp.tanh(jnp.tanh(h @ w) @ w)


def unrolled(checkpoint, ws, h):
    for w in ws:
        h = checkpoint(layer)(h, w)
    return (h**2).sum()


def loss(ws, h):
    return unrolled(jax.checkpoint, ws, h)


def plain(ws, h):
    return unrolled(lambda fun: fun, ws, h)


def step(ws, h):
    value, grads = jax.value_and_grad(loss)(ws, h)
    return jax.tree.map(lambda w, g: w - 0.1 * g, ws, grads), value


def in_batches(ws, hs):
    """Both passes are in the body of one loop."""

    def add(total, h):
        return jax.tree.map(jnp.add, total, jax.grad(loss)(ws, h)), None

    total, _ = lax.scan(add, jax.tree.map(jnp.zeros_like, ws), hs)
    return jax.tree.map(lambda w, g: w - 0.1 * g, ws, total)


def scanned(ws, h):
    return (lax.scan(lambda h, w: (jax.checkpoint(layer)(h, w), None), h, ws)[0] ** 2).sum()


def nested(ws, h):
    @jax.checkpoint
    def four(h, w):
        for _ in range(4):
            h = jax.checkpoint(layer)(h, w)
        return h

    return (lax.scan(lambda h, w: (four(h, w), None), h, ws)[0] ** 2).sum()


STACKED = jax.ShapeDtypeStruct((6, 128, 128), jnp.float32)


@pytest.fixture
def jaxlib(monkeypatch):
    """Has jaxresid take jaxlib for another version."""

    def pretend(version):
        monkeypatch.setattr(jax_compat, "jaxlib_version", lambda: version)

    return pretend


@pytest.mark.parametrize("name", ["unrolled, full", "unrolled, step"])
def test_the_table_says_what_this_compiler_does(name):
    build = barriers.programs(jax)[name]
    asked, made, _ = barriers.figures(jax, *build(jax.checkpoint))
    asked_plain, made_plain, _ = barriers.figures(jax, *build(barriers.no_checkpoint))
    assert (asked - asked_plain)["dot"] == 2 * barriers.LAYERS
    again = (made - made_plain)["dot"]
    keeps = cpu_compiler(jax_compat.jaxlib_version()).keeps_barriers
    assert again == (2 * barriers.LAYERS if keeps else 0)


def test_the_estimate_is_what_this_compiler_takes():
    compiled = jax.jit(jax.value_and_grad(loss)).lower(WS, X).compile().memory_analysis()
    taken = (
        compiled.argument_size_in_bytes
        + compiled.output_size_in_bytes
        + compiled.temp_size_in_bytes
        - compiled.alias_size_in_bytes
    )
    assert jaxresid.inspect(loss, on="cpu")(WS, X).peak.nbytes == pytest.approx(taken, rel=0.1)


@pytest.mark.integration
@pytest.mark.parametrize(("fun", "args"), [(loss, (WS, X)), (step, (WS, X))])
def test_unrolled_checkpoints(jaxlib, fun, args):
    jaxlib(KEEPS)
    held = jaxresid.inspect(fun, on="cpu")(*args)
    (site,) = held.checkpoints
    assert site.verdict == Verdict.EARNS
    jaxlib(UNDOES)
    undone = jaxresid.inspect(fun, on="cpu")(*args)
    (site,) = undone.checkpoints
    assert site.verdict == Verdict.UNDONE
    assert "XLA:CPU of jaxlib 0.10.2 removes its barriers" in site.reason
    assert site.peak_nbytes == site.peak_without_nbytes == undone.peak.nbytes
    assert undone.peak.nbytes > held.peak.nbytes + 6 * MIB
    # What autodiff keeps is no matter of the compiler.
    assert undone.residuals == held.residuals
    (other,) = jaxresid.inspect(fun)(*args).checkpoints  # for the accelerator
    assert other.verdict != Verdict.UNDONE


@pytest.mark.integration
def test_both_passes_in_one_body(jaxlib):
    args = WS, jax.ShapeDtypeStruct((2, *X.shape), X.dtype)
    for version, expected in ((KEEPS, Verdict.EARNS), (UNDOES, Verdict.UNDONE)):
        jaxlib(version)
        (site,) = jaxresid.inspect(in_batches, on="cpu")(*args).checkpoints
        assert site.verdict == expected


def test_loops_keep_their_passes_apart(jaxlib):
    jaxlib(KEEPS)
    held = jaxresid.inspect(scanned, on="cpu")(STACKED, X)
    jaxlib(UNDOES)
    found = jaxresid.inspect(scanned, on="cpu")(STACKED, X)
    assert [c.verdict for c in found.checkpoints] == [Verdict.EARNS]
    assert found.peak.nbytes == held.peak.nbytes
    outer, inner = jaxresid.inspect(nested, on="cpu")(STACKED, X).checkpoints
    assert outer.verdict == Verdict.EARNS
    assert inner.verdict == Verdict.UNDONE  # in the body of the backward loop


def test_what_check_says(jaxlib):
    jaxlib(UNDOES)
    (site,) = jaxresid.inspect(loss, on="cpu")(WS, X).checkpoints
    found = verdict_finding(site)
    assert found.name == "useless-checkpoint"
    assert "is undone by XLA: XLA:CPU of jaxlib 0.10.2" in found.message
    assert "are recomputed" not in found.message
    assert "0.11.1 or newer" in found.help


@pytest.mark.integration
def test_compare_and_plan(jaxlib):
    jaxlib(UNDOES)
    without = jaxresid.inspect(plain, on="cpu")(WS, X).peak.nbytes
    comparison = jaxresid.compare(loss, on="cpu")(WS, X)
    assert any("undoes checkpoints" in warning for warning in comparison.warnings)
    written = next(row for row in comparison.rows if row.policy == WRITTEN)
    assert written.peak_nbytes == without
    plan = jaxresid.plan(loss, budget="8MiB", on="cpu")(WS, X)
    assert not plan.fits
    assert any("undoes checkpoints" in warning for warning in plan.warnings)
    jaxlib(KEEPS)
    assert not jaxresid.compare(loss, on="cpu")(WS, X).warnings


@pytest.mark.parametrize(
    ("version", "row"),
    [
        ("0.10.2", "0.10.2"),
        ("0.12.0.1", "0.12.0.1"),
        ("0.12.0.1+cuda", "0.12.0.1"),
        ("0.10.1", "0.9.2"),
        ("0.13.0", "0.12.0.1"),
        ("0.6.0", "0.7.0"),
        ("0.11.10", "0.11.2"),
    ],
)
def test_a_version_that_was_not_measured_is_like_the_one_before_it(version, row):
    assert cpu_compiler(version).jaxlib == row
    remark = not_measured(version)
    if version.startswith(row):
        assert remark is None
    else:
        assert remark is not None
        assert f"jaxlib {row}; jaxlib {version} is assumed" in remark


def test_a_version_that_was_not_measured_is_said(jaxlib):
    jaxlib("0.13.0")
    warnings = jaxresid.inspect(plain, on="cpu")(WS, X).warnings
    assert any("jaxlib 0.12.0.1; jaxlib 0.13.0 is assumed" in warning for warning in warnings)
    assert not jaxresid.inspect(plain)(WS, X).warnings
    jaxlib(KEEPS)
    assert not jaxresid.inspect(plain, on="cpu")(WS, X).warnings


def test_the_profile_follows_the_installed_jaxlib():
    installed = cpu_compiler(jax_compat.jaxlib_version())
    assert bool(profile_of(parse_place("cpu")).removes_barriers) != installed.keeps_barriers
    assert not profile_of(parse_place("tpu:v5p")).removes_barriers
    assert len({row.jaxlib for row in MEASURED}) == len(MEASURED)

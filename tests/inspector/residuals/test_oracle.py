"""What jaxresid says against what JAX does: the leaves of the real `jax.vjp`, run eagerly."""

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings

import jaxresid
from fixtures.inspect import block, docs, gpt, offload, optimizer, stack8
from jaxresid.results import Computed, Mark
from tests import programs


def row(leaf):
    dtype = np.dtype(leaf.dtype) if not jnp.issubdtype(leaf.dtype, jax.dtypes.extended) else None
    itemsize = leaf.dtype.itemsize
    name = str(leaf.dtype) if dtype is None else dtype.name
    return name, tuple(leaf.shape), itemsize * int(np.prod(leaf.shape, dtype=int))


def rows_of(report):
    return Counter((r.aval.dtype, r.aval.shape, r.nbytes) for r in report.residuals)


def leaves_of(fun, args):
    """What `jax.vjp` really keeps: arrays, run eagerly."""
    return jax.tree.leaves(jax.vjp(fun, *args)[1])


def check_rows(report, leaves, fun, args):
    """That the report lists these arrays: as many of each dtype, shape and size.

    A cast to the dtype that a value has already is forwarded where JAX traces, and makes another
    array where it runs eagerly: `jax.nn.gelu(jnp.exp(x))` keeps the exponential once or twice. So
    a leaf may be missing, if it equals another bit for bit and a traced `jax.vjp` does without.
    """
    ours, eager = rows_of(report), Counter(map(row, leaves))
    if ours == eager:
        return
    assert not ours - eager
    for what, number in (eager - ours).items():
        same = [np.asarray(leaf).tobytes() for leaf in leaves if row(leaf) == what]
        assert len(same) - len(set(same)) >= number
    traced = jax.jit(lambda *args: jax.vjp(fun, *args))(*args)
    assert ours == Counter(map(row, jax.tree.leaves(traced[1])))


def ones(tree):
    """Concrete arrays for ShapeDtypeStructs."""
    rng = np.random.default_rng(0)

    def one(s):
        return jnp.asarray(rng.normal(size=s.shape) / 4, s.dtype)

    return jax.tree.map(one, tree)


def check(report):
    """What holds of every report."""
    by_kind = Counter()
    for r in report.residuals:
        if isinstance(r.origin, Computed):
            by_kind["host" if r.aval.memory == "host" else "computed"] += r.nbytes
            assert r.origin.location is not None or r.origin.path is not None
            assert r.origin.primitive not in ("jit", "cond", "remat", "closed_call")
            # A scan makes no value of its own, but it may stack one that comes from outside.
            assert r.origin.primitive != "scan" or Mark.INVARIANT in r.marks
            loops = [int(w.removeprefix("scan ×")) for w in r.origin.within if "scan ×" in w]
            assert r.trips <= int(np.prod(loops, dtype=int))
            if not r.origin.through:
                # Loops stack what they keep: their trips are the leading axes.
                prefixes = np.cumprod((1, *r.aval.shape), dtype=int)
                assert r.trips in prefixes
        else:
            by_kind[r.origin.kind] += r.nbytes
            assert r.trips == 1
            assert Mark.DUPLICATE not in r.marks
        assert r.nbytes == int(np.prod(r.aval.shape, dtype=int)) * r.aval.itemsize
    t = report.totals
    assert t.arguments_nbytes == by_kind["argument"]
    assert t.computed_nbytes == by_kind["computed"]
    assert t.host_nbytes == by_kind["host"]
    assert t.constants_nbytes == by_kind["constant"]


def saved_residuals(fun, args):
    """JAX's own list; None where its last assertion fails (a value saved twice)."""
    module = pytest.importorskip("jax._src.ad_checkpoint")
    try:
        return Counter((a.dtype.name, a.shape) for a, _ in module.saved_residuals(fun, *args))
    except AssertionError:
        return None


def small_gpt(form):
    leading = (2,) if "scan" in form else ()
    weights = gpt.weights(32, *leading)
    return (weights if leading else [weights] * 2), gpt.tokens(2, 4, 32)


CASES = {
    **{
        f"docs.{name}": (getattr(docs, name), getattr(docs, f"{name}_inputs")())
        for name in (
            *("three_layers", "three_layers_each", "three_layers_dots", "three_layers_named"),
            *("sines8", "sines16", "recursive8", "recursive16"),
            *("loss", "loss_dots", "loss_names", "save_offload_recompute"),
        )
    },
    **{
        f"offload.{name}": (getattr(offload, name), offload.inputs(3, 4, 8))
        for name in ("plain", "offloaded")
    },
    **{
        f"gpt.{form}": (getattr(gpt, form), small_gpt(form))
        for form in ("loss", "loss_scan", "loss_jit", "loss_scan_jit")
    },
    **{
        f"stack8.{form}_{policy}": (stack8.build(form, policy), stack8.inputs(form, 2, 1, 4, 16))
        for form in ("scan", "loop")
        for policy in ("none", "dots", "dots_no_batch", "nothing")
    },
    **{
        f"block.{name}": (getattr(block, name), block.example_inputs(2, 3, 5))
        for name in ("plain", "checkpointed")
    },
    "optimizer.loss": (optimizer.loss, optimizer.loss_inputs(4)),
}


@pytest.mark.integration
@pytest.mark.parametrize("name", CASES)
def test_fixture(name, jax_version):
    fun, inputs = CASES[name]
    report = jaxresid.inspect(fun, mode="loss")(*inputs)
    check(report)
    if name == "docs.save_offload_recompute" and jax_version < (0, 7, 2):
        # The CPU has no pinned_host memory yet, so that the transfer traces but does not run.
        _, kept = jax.eval_shape(lambda *args: jax.vjp(fun, *args), *inputs)
        assert rows_of(report) == Counter(map(row, jax.tree.leaves(kept)))
        return
    args = ones(inputs)
    check_rows(report, leaves_of(fun, args), fun, args)


@pytest.mark.integration
@pytest.mark.parametrize("name", CASES)
def test_fixture_against_jax(name, jax_version):
    if jax_version < (0, 10, 2):
        pytest.skip("saved_residuals counts what it looks through as well, until 0.10.2")
    fun, inputs = CASES[name]
    theirs = saved_residuals(fun, ones(inputs))
    report = jaxresid.inspect(fun, mode="loss")(*inputs)
    ours = Counter((d, s) for d, s, _ in rows_of(report).elements())
    assert theirs is None or ours == theirs


def check_program(program, output):
    fun, args = programs.function(program, output), programs.arguments()
    try:
        leaves = leaves_of(fun, args)
    except Exception:  # JAX itself cannot
        assume(False)
    # One that holds a gradient and returns a vector would be taken for a training step.
    report = jaxresid.inspect(fun, mode="loss")(*args)
    check(report)
    check_rows(report, leaves, fun, args)
    # There 0.10 leaves what has a derivative of its own (jax.nn.relu) no frame of its caller.
    if getattr(jax.config, "jax_remat3", False) and jax.__version_info__ < (0, 11):
        return
    for r in report.residuals:
        if isinstance(r.origin, Computed) and r.origin.location is not None:
            assert r.origin.location.file.endswith("programs.py")


@pytest.mark.integration
@settings(max_examples=100)
@given(programs.programs, programs.outputs)
def test_program(program, output):
    check_program(program, output)


@pytest.mark.programs
@settings(max_examples=300)
@given(programs.programs, programs.outputs)
def test_many_programs(program, output):
    check_program(program, output)


@pytest.mark.integration
@pytest.mark.parametrize("kind", sorted(programs.PLAIN))
def test_every_step(kind):
    check_program(((kind,), ("sin",)), "sum")

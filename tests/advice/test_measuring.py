"""Variants run side by side: times, agreement, and what becomes of those that fail."""

import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fixtures.inspect import block
from jaxresid.advice.timing.measure import process as bench_process
from jaxresid.advice.timing.measure import rounds as measuring
from jaxresid.advice.timing.measure import tolerance as agreement
from jaxresid.advice.timing.measure.random_inputs import leaf_recipes, make_leaves, spec
from jaxresid.advice.timing.measure.rounds import VariantToTime, measured
from jaxresid.advice.timing.measure.worker import Bench
from jaxresid.base.errors import InputsError, JaxresidError
from tests.where import ROOT

INPUTS = block.example_inputs(batch=8, width=32, hidden=256)
LEAVES, TREEDEF = jax.tree.flatten(INPUTS)
PATHS = ["params[0]", "params[1]", "x", "target"]


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def gradients(fun):
    def run(leaves):
        return jax.tree.leaves(jax.value_and_grad(fun)(*jax.tree.unflatten(TREEDEF, leaves)))

    return run


def wrong(leaves):
    value, *others = gradients(block.plain)(leaves)
    return [value, *(1.01 * gradient for gradient in others)]


def absurd(leaves):
    value, *others = gradients(block.plain)(leaves)
    return [jnp.sort(jnp.broadcast_to(value, (1 << 22, 1 << 20)), axis=0), *others]


def calling_back(leaves):
    value, *others = gradients(block.plain)(leaves)
    return [jax.pure_callback(lambda v: v, jax.ShapeDtypeStruct((), value.dtype), value), *others]


def failing(leaves):
    raise ValueError("no such layer")


NONE, REMAT = (
    VariantToTime("none", gradients(block.plain)),
    VariantToTime("remat", gradients(block.checkpointed)),
)
OTHERS = [
    VariantToTime("wrong", wrong),
    VariantToTime("absurd", absurd),
    VariantToTime("failing", failing),
]


@pytest.fixture(scope="module")
def apart():
    said = []
    runs = [NONE, REMAT, *OTHERS, VariantToTime("calling back", calling_back)]
    found = measured(runs, "none", LEAVES, PATHS, rounds=3, progress=said.append)
    return found, said


@pytest.mark.integration
def test_a_checkpoint_agrees_and_is_timed(apart):
    found, _ = apart
    assert found.device.startswith("cpu (")
    none, remat = found.timings["none"], found.timings["remat"]
    assert (none.ratio, none.low, none.high, none.gradient_error) == (1, 1, 1, 0)
    assert remat.agrees
    assert remat.gradient_error < 1e-5
    assert remat.tolerance == 1e-4
    assert remat.rounds == 3
    assert 0 < remat.low <= remat.ratio <= remat.high < math.inf
    assert 0 < remat.seconds < 60


@pytest.mark.integration
def test_wrong_gradients_are_seen(apart):
    found, _ = apart
    assert found.timings["wrong"].gradient_error == pytest.approx(0.01, rel=1e-3)
    assert found.timings["wrong"].agrees is False


@pytest.mark.integration
def test_what_fails_fails_alone(apart):
    found, _ = apart
    assert set(found.timings) == {"none", "remat", "wrong"}
    assert found.errors["absurd"] == "out of memory: needs 16.00 TiB more"
    assert found.errors["failing"] == "ValueError: no such layer"
    assert "calls back into Python" in found.errors["calling back"]


@pytest.mark.integration
def test_progress(apart):
    _, said = apart
    assert said[:2] == ["measuring 6 programs", "none: compiling and running"]
    assert said[-1] == "round 3 of 3"


@pytest.mark.integration
def test_in_this_process():
    runs = [NONE, REMAT, *OTHERS, VariantToTime("calling back", calling_back)]
    found = measured(runs, "none", LEAVES, PATHS, rounds=1, isolated=False)
    assert set(found.timings) == {"none", "remat", "wrong", "calling back"}
    assert found.timings["remat"].agrees
    assert found.timings["calling back"].agrees
    assert not found.timings["wrong"].agrees
    assert found.errors["absurd"] == "out of memory: needs 16.00 TiB more"
    assert found.errors["failing"] == "ValueError: no such layer"


def test_ratios_are_those_of_a_round(monkeypatch):
    taken = {"none": iter([1.0, 2.0, 4.0, 0]), "remat": iter([2.0, 3.0, 4.0, 0])}
    monkeypatch.setattr(Bench, "seconds", lambda self, label: next(taken[label]))
    runs = [VariantToTime(label, lambda leaves: [2 * leaves[0]]) for label in taken]
    found = measured(runs, "none", [f32(3)], ["x"], rounds=9, patience_s=0, isolated=False)
    timing = found.timings["remat"]
    assert (timing.seconds, timing.rounds) == (3, 3)
    assert (timing.low, timing.ratio, timing.high) == (1, 1.5, 2)
    assert found.timings["none"].seconds == 2


def test_rounds_are_interleaved_in_changing_order(monkeypatch):
    called = []
    monkeypatch.setattr(Bench, "seconds", lambda self, label: called.append(label) or 1.0)
    runs = [VariantToTime(label, lambda leaves: [2 * leaves[0]]) for label in "abc"]
    found = measured(runs, "a", [f32(3)], ["x"], rounds=8, isolated=False)
    orders = ["".join(called[i : i + 3]) for i in range(0, len(called), 3)]
    assert found.timings["a"].rounds == len(orders) == 8
    assert all(sorted(order) == ["a", "b", "c"] for order in orders)
    assert len(set(orders)) > 2


def test_short_runs_are_repeated_and_the_first_is_not_counted(monkeypatch):
    bench = Bench(leaf_recipes([f32(3)], ["x"]), 0)
    bench.load("none", jax.jit(lambda leaves: leaves).lower([f32(3)]))
    program, calls, clock = bench._programs["none"], [], [0.0]

    def first_is_slow(inputs):
        calls.append(inputs)
        clock[0] += 0.5 if len(calls) == 1 else 0.001
        return program(inputs)

    bench._programs["none"] = first_is_slow
    monkeypatch.setattr("jaxresid.advice.timing.measure.worker.time.perf_counter", lambda: clock[0])
    assert bench.seconds("none") == pytest.approx(0.001)
    assert len(calls) in (6, 7)


# A bench that ends with its process, or takes a minute, for some labels.
FRAGILE = """
import os, signal, sys, time
from jaxresid.advice.timing.measure.worker import Bench
from jaxresid.advice.timing.measure.process import serve

class Fragile(Bench):
    def run_reference(self, label):
        if label == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().run_reference(label)

    def error(self, label, tolerance):
        if label == "aborts":
            print("F1121 xla.cc:1] Check failed: false", file=sys.stderr, flush=True)
            os.abort()
        return super().error(label, tolerance)

    def seconds(self, label):
        if label == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if label == "sleeps":
            open(os.environ["SLEEPING"], "w").write(str(os.getpid()))
            time.sleep(60)
        return super().seconds(label)

serve(Fragile)
"""


@pytest.mark.integration
def test_a_process_that_ends_takes_one_variant_along(monkeypatch):
    monkeypatch.setattr(bench_process, "_START", FRAGILE)
    runs = [VariantToTime("aborts", NONE.fun), NONE, VariantToTime("killed", NONE.fun), REMAT]
    found = measured(runs, "none", LEAVES, PATHS, rounds=3)
    assert found.errors == {
        "aborts": "SIGABRT: F1121 xla.cc:1] Check failed: false",
        "killed": "killed (out of memory?)",
    }
    assert set(found.timings) == {"none", "remat"}
    assert found.timings["none"].rounds == found.timings["remat"].rounds == 3
    assert found.timings["remat"].agrees


@pytest.mark.integration
def test_without_a_baseline_there_are_times_alone(monkeypatch):
    monkeypatch.setattr(bench_process, "_START", FRAGILE)
    found = measured([VariantToTime("dies", NONE.fun), REMAT], "dies", LEAVES, PATHS, rounds=2)
    assert found.errors == {"dies": "killed (out of memory?)"}
    remat = found.timings["remat"]
    assert remat.seconds > 0
    assert (remat.ratio, remat.low, remat.high) == (None, None, None)
    assert remat.gradient_error is remat.agrees is None


INTERRUPTED = f"""
import os, signal, sys
# Whoever starts the tests in the background may have told them to ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ["JAX_PLATFORMS"] = "cpu"
sys.path.insert(0, {str(ROOT)!r})
from jaxresid.advice.timing.measure import process, rounds
import jax.numpy as jnp

process._START = {FRAGILE!r}
run = rounds.VariantToTime("sleeps", lambda leaves: [2 * leaves[0]])
rounds.measured([run], "sleeps", [jnp.ones(3)], ["x"])
"""


@pytest.mark.integration
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=lambda n: n.name)
def test_no_process_is_left_behind(number, tmp_path):
    sleeping = tmp_path / "pid"
    parent = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED],
        env={**os.environ, "SLEEPING": str(sleeping)},
        stderr=subprocess.PIPE,
    )
    try:
        wait_until(lambda: sleeping.exists() and sleeping.read_text())
        child = int(sleeping.read_text())
        assert is_running(child)
        parent.send_signal(number)
        parent.communicate(timeout=30)
        assert parent.returncode == -number
        wait_until(lambda: not is_running(child))
    finally:
        parent.kill()


def wait_until(holds):
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_running(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.integration
def test_every_kind_of_leaf_reaches_the_process():
    leaves = [
        jax.eval_shape(lambda: jax.random.key(0)),
        jax.random.split(jax.random.key(7), 3),
        jax.ShapeDtypeStruct((2,), jnp.uint32),
        2.5,
        jax.ShapeDtypeStruct((), jnp.float32, weak_type=True),
        jax.ShapeDtypeStruct((4, 3), jnp.bfloat16),
        jax.ShapeDtypeStruct((4,), jnp.complex64),
        jax.ShapeDtypeStruct((4,), jnp.bool_),
        np.arange(4, dtype=np.int32),
    ]

    def fun(leaves):
        key, keys, raw, number, weak, half, complex_, flags, ids = leaves
        draws = [jax.random.normal(k, (4,)) for k in (key, keys[1], raw)]
        scaled = half[ids % 2] * weak
        assert scaled.dtype == jnp.bfloat16
        return [*draws, scaled, number * complex_ * flags, key, ids]

    def negative(leaves):
        return [-r if jnp.issubdtype(r.dtype, jnp.inexact) else r for r in fun(leaves)]

    paths = [f"leaf{i}" for i in range(len(leaves))]
    runs = [
        VariantToTime("none", fun),
        VariantToTime("same", fun),
        VariantToTime("negative", negative),
    ]
    found = measured(runs, "none", leaves, paths, rounds=1)
    assert found.errors == {}
    assert found.timings["same"].agrees
    assert found.timings["same"].tolerance == 2**-4  # it computes in bfloat16
    assert found.timings["negative"].gradient_error == pytest.approx(2)


@pytest.mark.integration
def test_leaves_in_host_memory():
    device = jax.devices()[0]
    if not any(m.kind == "pinned_host" for m in device.addressable_memories()):
        pytest.skip("this JAX has no pinned host memory on the CPU")
    mesh = jax.sharding.Mesh([device], "device")

    def in_memory(kind):
        return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(), memory_kind=kind)

    def fun(leaves):
        return [jax.device_put(leaves[0], in_memory("device")) @ leaves[1]]

    host = in_memory("pinned_host")
    leaves = [jax.ShapeDtypeStruct((4, 4), jnp.float32, sharding=host), f32(4)]
    array = make_leaves(leaf_recipes(leaves, ["w", "x"]), 0)[0]
    assert array.sharding.memory_kind == "pinned_host"
    for isolated in (True, False):
        found = measured(
            [VariantToTime("none", fun)], "none", leaves, ["w", "x"], isolated=isolated
        )
        assert found.errors == {}


@pytest.mark.integration
def test_draws_are_the_same_for_a_seed_and_scaled_by_fan_in():
    leaves = [f32(400), f32(400, 100), f32(24, 100, 50), f32(3, 3, 64, 32), f32(0, 3)]
    made = leaf_recipes(leaves, [str(i) for i in range(len(leaves))])
    vector, matrix, stacked, kernel, empty = make_leaves(made, 0)
    assert jnp.std(vector) == pytest.approx(1, rel=0.2)
    assert jnp.std(matrix) == pytest.approx(400**-0.5, rel=0.05)
    assert jnp.std(stacked) == pytest.approx(100**-0.5, rel=0.05)
    assert jnp.std(kernel) == pytest.approx((9 * 64) ** -0.5, rel=0.05)
    assert empty.shape == (0, 3)
    assert jnp.array_equal(matrix, make_leaves(made, 0)[1])
    assert not jnp.array_equal(matrix, make_leaves(made, 1)[1])


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16, jnp.complex64])
def test_nudging_changes_the_last_bit(dtype):
    made = leaf_recipes([jnp.asarray([0, 1, -3, jnp.inf, jnp.nan], dtype)], ["x"])
    (given,), (nudged,) = make_leaves(made, 0), make_leaves(made, 0, nudged=True)
    assert given.dtype == nudged.dtype == dtype
    assert np.array_equal(given[jnp.array([0, 3, 4])].real, nudged[jnp.array([0, 3, 4])].real, True)
    change = np.abs(np.asarray(given[1:3] / nudged[1:3]).astype(np.complex64) - 1)
    assert (change > 0).all()
    assert (change <= 1.01 * jnp.finfo(dtype).eps).all()


@pytest.mark.parametrize(
    ("leaf", "described"),
    [
        (jax.ShapeDtypeStruct((8, 128), jnp.int32), r"int32\[8, 128\] of unknown range"),
        (jax.ShapeDtypeStruct((8, 3), jnp.uint32), "uint32"),
        (jax.ShapeDtypeStruct((8,), jax.dtypes.float0), "float0"),
    ],
)
def test_what_cannot_be_guessed_has_to_be_given(leaf, described):
    with pytest.raises(InputsError, match=f"^batch\\['tokens'\\], {described}.*") as error:
        measured([NONE], "none", [f32(3), leaf, leaf], ["x", "batch['tokens']", "labels"])
    assert "(nor can 1 more)" in str(error.value)
    assert "--inputs make_inputs --concrete-inputs" in str(error.value)
    assert "\n" not in str(error.value)


def test_what_to_install(monkeypatch):
    monkeypatch.setattr(measuring.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(JaxresidError, match=r"pip install 'jaxresid\[measure\]'"):
        measured([NONE], "none", LEAVES, PATHS)


@pytest.mark.integration
@pytest.mark.parametrize("fun", [block.plain, block.checkpointed])
def test_what_is_exported_compiles_to_what_jit_compiles(fun):
    made = leaf_recipes(LEAVES, PATHS)
    specs = [spec(draw) for draw in made]
    bench, jitted = Bench(made, 0), jax.jit(gradients(fun))
    bench.load("exported", measuring.exported(jitted, specs))
    exported, direct = bench._programs["exported"], jitted.lower(specs).compile()
    assert exported.cost_analysis()["flops"] == direct.cost_analysis()["flops"]
    sizes = [c.memory_analysis().temp_size_in_bytes for c in (exported, direct)]
    assert sizes[0] == sizes[1] > 0


def test_custom_calls_without_promises_are_exported():
    call = jax.ffi.ffi_call("test_measuring.unknown", f32(3))
    exported = measuring.exported(jax.jit(lambda leaves: [call(leaves[0])]), [f32(3)])
    assert b"test_measuring.unknown" in exported


def test_rounding_alone_is_told_from_values():
    leaves = [f32(40, 40), f32(40, 40)]
    bench = Bench(leaf_recipes(leaves, ["w", "x"]), 0)

    def fun(leaves):
        shares = jax.nn.softmax(leaves[1] @ leaves[0])
        return [shares, jnp.sum(shares, axis=-1) - 1]

    bench.load("none", jax.jit(fun).lower(leaves))
    bench.run_reference("none")
    shares, rounding = bench._noise
    greatest = [agreement.greatest(array) for array in bench._reference]
    assert 0 < shares < 1e-5 * greatest[0]
    assert 0 < greatest[1] < 1e-5
    assert rounding > 0.1 * greatest[1]
    assert bench.error("none", 1e-4) == 0
    assert np.array_equal(bench._inputs[0], make_leaves(bench._draws, 0)[0])


@pytest.mark.parametrize(
    ("array", "reference", "noise", "error"),
    [
        ([1, 2, 4], [1, 2, 4], 0, 0),
        ([1, 2, 4.5], [1, 2, 5], 0, 0.1),
        ([1, -5], [1, 5], 0, 2),
        ([1 + 1j], [1 - 1j], 0, 2 / math.sqrt(2)),
        ([0, 0], [0, 0], 0, None),
        ([math.nan, 1], [math.nan, 1], 0, None),
        ([math.nan, 1, 2], [math.nan, 1, 1], 0, 1),
        ([complex(0, math.nan), 1], [math.nan, 1], 0, None),
        ([math.nan], [math.nan], 0, None),
        ([math.inf, 1], [math.inf, 2], 0, 0.5),
        ([math.nan, 1], [0, 1], 0, 1),
        ([math.inf, 1], [-math.inf, 1], 0, 1),
        ([math.nan, 1], [0, 1], math.inf, None),
        ([3e-9], [0], 0, 1),
        ([4e-9], [1e-9], 1e-9, 1e-4),
        ([4e-6], [1e-9], 1e-9, 4e-6 / 3e-9 * 1e-4),
        ([1.01], [1], 1e-6, 0.01),
        ([], [], 0, None),
    ],
)
def test_error(array, reference, noise, error, monkeypatch):
    monkeypatch.setattr(agreement, "_PIECE", 2)
    found = agreement.error([np.array(array)], [np.array(reference)], [noise], 1e-4)
    assert found == (None if error is None else pytest.approx(error, rel=1e-3))


def test_the_worst_array_counts():
    references = [np.array([1.0]), np.array([[100.0, 1.0]])]
    arrays = [np.array([1.25]), np.array([[101.0, 1.0]])]
    assert agreement.error(arrays, references, [0, 0], 1e-4) == pytest.approx(0.25)


def test_what_is_nan_in_one_array_is_not_told_from_the_others():
    nan, one = np.array([math.nan]), np.array([1.0])
    assert agreement.error([nan, one], [nan, one], [0, 0], 1e-4) is None
    assert agreement.error([nan, 2 * one], [nan, one], [0, 0], 1e-4) == 1


@pytest.mark.integration
@pytest.mark.parametrize("isolated", [True, False])
def test_of_nan_gradients_nothing_is_said(isolated):
    def fun(leaves):
        (gradient,) = jax.grad(lambda x: jnp.sum(jnp.sin(jnp.log(-1 - jnp.abs(x[0])))))(leaves)
        return [jnp.float32(1), gradient]

    runs = [VariantToTime("none", fun), VariantToTime("remat", fun)]
    found = measured(runs, "none", [f32(3)], ["x"], rounds=1, isolated=isolated)
    assert [t.agrees for t in found.timings.values()] == [None, None]


@pytest.mark.parametrize(
    ("inner", "platform", "expected"),
    [
        (jnp.float32, "cpu", 1e-4),
        (jnp.bfloat16, "cpu", 2**-4),
        (jnp.float16, "cpu", 2**-7),
        (jnp.float8_e4m3fn, "cpu", 0.25),
        (jnp.float32, "gpu", 2**-7),
        (jnp.float32, "tpu", 2**-4),
        (jnp.float16, "tpu", 2**-7),
    ],
)
def test_tolerance_goes_by_the_narrowest_dtype(inner, platform, expected):
    def fun(x):
        return jax.jit(lambda y: y.astype(inner).astype(jnp.float32))(x) + 1

    traced = jax.jit(fun).trace(f32(3))
    jaxpr = measuring.jax_compat.open_jaxpr(traced.jaxpr)
    assert measuring.tolerance(jaxpr, platform) == expected

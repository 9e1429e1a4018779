"""The lifetimes of values: they add up to the bytes of each point, and are those of the program."""

import dataclasses
import itertools
import os
import subprocess
import sys
from collections import Counter

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import jaxresid
from fixtures.inspect import block, gpt, offload, stack8, train_step
from jaxresid.inspector.memory.lifetimes import lifetimes
from jaxresid.inspector.memory.lowered import lower
from jaxresid.inspector.memory.profile import GPU, TPU
from jaxresid.results import NOWHERE, without_names
from tests import program_oracle, random_programs
from tests.inspector.memory.test_peak_tpu import F32, program
from tests.small import f32


class NoPlaces:
    """Places of a program that nobody asks about."""

    source = staticmethod(lambda op: NOWHERE)
    stack = staticmethod(lambda op: ())


X, W = ((64, 128), F32), ((128, 128), F32)


def live_at(found, i):
    return [v for v in found.values if v.start <= i < v.stop]


def by_kind(values):
    total = Counter()
    for v in values:
        total[v.live.kind] += v.live.nbytes
    return dict(total)


def add_up(found):
    """Assert that at each point the values that are live add up to its bytes."""
    for i, point in enumerate(found.points):
        assert sum(v.live.nbytes for v in live_at(found, i)) == point.nbytes, i
    assert max(point.nbytes for point in found.points) == found.points[found.at].nbytes
    assert found.points[found.at].nbytes == found.nbytes
    assert all(0 <= v.start < v.stop <= len(found.points) for v in found.values)


def thinned(found):
    """Return the points as the curve of a report has them: of each stretch the highest."""
    nbytes = [point.nbytes for point in found.points]
    count = min(len(nbytes), 200)
    edges = [i * len(nbytes) // count for i in range(count + 1)]
    return tuple(max(nbytes[a:b]) for a, b in itertools.pairwise(edges))


def reported(fun, *args, **options):
    """Return the report of a function, whose lifetimes agree with all that it says of its peak."""
    report = jaxresid.inspect(fun, lifetimes=True, **options)(*args)
    for found in report.lifetimes:
        add_up(found)
    first = report.lifetimes[0]
    assert (first.name, first.nbytes) == ("", report.peak.nbytes)
    assert first.interval == report.peak.interval
    assert by_kind(live_at(first, first.at)) == dict(report.peak.breakdown)
    assert thinned(first) == report.peak.curve
    point = first.points[first.at]
    said = (report.peak.primitive, report.peak.source, report.peak.phase)
    assert (point.primitive, point.source, point.phase) == said
    return report


def mlp(params, x):
    for w in params:
        x = jnp.tanh(x @ w)
    return jnp.sum(x**2)


def step(params, state, x):
    """Clip the gradients by their norm, which needs all of them at once, and add momentum."""
    loss, grads = jax.value_and_grad(mlp)(params, x)
    norm = jnp.sqrt(sum(jnp.sum(g**2) for g in grads))
    state = [0.9 * m + g / norm for m, g in zip(state, grads, strict=True)]
    return [p - 0.1 * m for p, m in zip(params, state, strict=True)], state, loss


def step_arguments():
    params = [f32(128, 128)] * 3
    return params, params, f32(1024, 128)


PLACES = ("gpu:h100", "tpu:v5e")


@pytest.mark.parametrize("on", PLACES)
def test_a_function(on):
    report = reported(mlp, [f32(128, 128)] * 3, f32(1024, 128), on=on)
    (found,) = report.lifetimes
    kept = [v for v in found.values if v.reason == "residual"]
    assert {v.live.kind for v in kept} == {"residual"}
    for v in kept:
        assert found.points[v.start].phase == "forward"
        assert found.points[v.stop - 1].phase == "backward"
        assert v.live.location is not None


@pytest.mark.parametrize("on", PLACES)
@pytest.mark.parametrize("donated", [(), (0, 1)])
def test_a_step(on, donated):
    report = reported(jax.jit(step, donate_argnums=donated), *step_arguments(), on=on)
    (found,) = report.lifetimes
    assert {v.reason for v in found.values} >= {"argument", "output", "residual"}
    # On a GPU gradients are in the buffers of outputs that are not written yet.
    assert any(v.reason == "gradient" for v in found.values) or on == "gpu:h100"
    for v in found.values:
        if v.reason in ("argument", "output"):
            assert (v.start, v.stop, v.read_at) == (0, len(found.points), None)
        if v.reason == "gradient":
            assert found.points[v.start].phase == "backward"
            assert found.points[v.stop - 1].phase == "update"


@pytest.mark.parametrize("on", PLACES)
def test_a_scan(on):
    def loss(x, ws):
        def body(c, w):
            return jnp.tanh(c @ w), None

        return jnp.sum(lax.scan(body, x, ws)[0] ** 2)

    report = reported(loss, f32(64, 128), f32(4, 128, 128), on=on)
    (found,) = report.lifetimes
    inside = [v for v in found.values if v.inside is not None]
    assert inside
    assert {v.inside.location.code for v in inside} == {
        "return jnp.sum(lax.scan(body, x, ws)[0] ** 2)"
    }
    # What is made in a body is gone after the loop.
    loops = [i for i, point in enumerate(found.points) if point.primitive == "scan"]
    for v in inside:
        assert not any(v.start <= i < v.stop for i in loops)


@pytest.mark.parametrize("on", PLACES)
def test_nested_loops_and_branches(on):
    def loss(x, ws):
        def body(c, w):
            def inner(d, _):
                return lax.cond(d[0, 0] > 0, lambda d: jnp.sin(d @ w) @ w, jnp.tanh, d @ w), None

            return lax.scan(inner, c, length=3)[0], None

        return jnp.sum(lax.scan(body, x, ws)[0] ** 2)

    report = reported(loss, f32(64, 128), f32(4, 128, 128), on=on)
    around = {v.inside.location.code for v in report.lifetimes[0].values if v.inside}
    inner, outer = (
        "return lax.scan(inner, c, length=3)[0], None",
        "return jnp.sum(lax.scan(body, x, ws)[0] ** 2)",
    )
    assert inner in around  # a branch is no loop
    assert around <= {inner, outer}


def test_what_only_the_forward_pass_reads_is_a_temporary():
    def loss(x, w):
        y = lax.stop_gradient(jnp.sort(x @ w, axis=0))
        return jnp.sum(jnp.sin(x) * jnp.sum(y))

    (found,) = reported(loss, f32(512, 512), f32(512, 512)).lifetimes
    sort = [v for v in found.values if v.live.primitive in ("sort", "dot_general")]
    assert {v.live.kind for v in sort} == {"temporary"}


def test_checkpoints():
    inputs = block.example_inputs()
    report = reported(block.checkpointed, *inputs)
    assert len(report.lifetimes) == 1 + len(report.checkpoints) > 1
    for found, checkpoint in zip(report.lifetimes[1:], report.checkpoints, strict=True):
        line = f"{checkpoint.location.file}:{checkpoint.location.line}"
        assert found.name == f"without checkpoint {line}"
        assert found.nbytes == checkpoint.peak_without_nbytes
        assert report.without(checkpoint) is found
    assert any(point.phase == "recompute" for point in report.lifetimes[0].points)


def test_checkpoints_that_are_told_apart_by_their_neighbours():
    """Their figures are found without making each program; those of the programs are the same."""

    def layer(x, w):
        return jnp.sin(jnp.tanh(x @ w))

    def loss(ws, x):
        for i in range(8):
            x = jax.checkpoint(layer)(x, ws[i])
        return jnp.sum(x)

    report = reported(loss, [f32(128, 128)] * 8, f32(64, 128))
    for found, checkpoint in zip(report.lifetimes[1:], report.checkpoints, strict=True):
        assert found.nbytes == checkpoint.peak_without_nbytes


def two_at_a_line(x):
    def one(x):
        return jnp.sin(jnp.sin(x))

    def two(x):
        return jnp.cos(jnp.cos(x))

    return jnp.sum(jax.checkpoint(two)(jax.checkpoint(one)(x)))


def test_several_checkpoints_at_a_line_have_names_of_their_own():
    report = reported(two_at_a_line, f32(64, 128))
    names = [found.name for found in report.lifetimes[1:]]
    assert len(set(names)) == 2
    assert all("(one)" in name or "(two)" in name for name in names)
    for checkpoint in report.checkpoints:
        assert f"({checkpoint.function.rpartition('.')[2]})" in report.without(checkpoint).name


def test_names_tell_checkpoints_apart():
    (one, two) = reported(two_at_a_line, f32(64, 128)).checkpoints
    nowhere = dataclasses.replace(one, source=NOWHERE)
    line = f"without checkpoint {one.location.file}:{one.location.line}"
    assert without_names([one, nowhere]) == (line, f"without checkpoint {one.function}")
    assert without_names([one, two, one]) == (
        f"{line} ({one.function}) #1",
        f"{line} ({two.function})",
        f"{line} ({one.function}) #2",
    )


@pytest.mark.parametrize("on", PLACES)
def test_offloaded_values_take_no_device_memory(on):
    report = reported(offload.offloaded, *offload.offloaded_inputs(), on=on)
    assert report.offloading is not None
    assert all(
        v.live.aval is None or v.live.aval.memory == "device"
        for found in report.lifetimes
        for v in found.values
    )


SPLIT = """
import jax.numpy as jnp
from tests.inspector.memory.test_lifetimes import reported
from tests.sharded import CASES

for case in CASES[::5]:
    report = reported(case.under("dots"), *case.inputs(case.mesh()))
    assert report.mesh.size > 1
"""


@pytest.mark.integration
def test_a_mesh_has_the_bytes_of_one_device():
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8"}
    subprocess.run([sys.executable, "-c", SPLIT], env=environment, check=True)


def test_a_program_without_ops_has_one_point():
    report = jaxresid.inspect(lambda x: x, lifetimes=True)(f32())
    for found in report.lifetimes:
        add_up(found)


def test_nothing_is_there_unless_asked():
    assert jaxresid.inspect(mlp)([f32(128, 128)], f32(64, 128)).lifetimes == ()


def test_a_cpu_has_none():
    with pytest.raises(jaxresid.InputsError, match=r"lifetimes are part of the estimate.*cpu"):
        jaxresid.inspect(mlp, on="cpu", lifetimes=True)([f32(128, 128)], f32(64, 128))
    with pytest.raises(jaxresid.InputsError, match="lifetimes are part of the estimate"):
        jaxresid.compare(mlp, on="cpu", lifetimes=True)([f32(128, 128)], f32(64, 128))
    with pytest.raises(jaxresid.InputsError, match="lifetimes are part of the estimate"):
        jaxresid.plan(mlp, on="cpu", budget="1GiB", lifetimes=True)([f32(128, 128)], f32(64, 128))


def test_brute_force():
    """On a TPU a temporary is live from the op that makes it to the last that reads it.

    The result of an op that may write over an operand, when that is not read again, is in the
    operand's buffer, which is then its own.
    """

    def loss(x, a, b):
        y = jnp.tanh(x @ a)
        return jnp.sum(jnp.sort(y @ b) * y)

    made = program(loss, X, W, W)
    lowered = lower(made, TPU)
    ops, sizes = lowered.block.ops, lowered.block.nbytes
    outside = {*lowered.block.inputs, *lowered.block.outputs}
    found = lifetimes(lowered, NoPlaces)
    assert [point.primitive for point in found.points] == [op.name for op in ops]
    expected = []
    for i, op in enumerate(ops):
        for v in op.results:
            if v in outside:
                continue
            readers = [j for j, other in enumerate(ops) if v in other.operands]
            last = max([i, *readers])
            over = last > i and v in ops[last].overwrites
            taken = over and any(
                w not in outside and sizes.get(w, w.nbytes) == sizes.get(v, v.nbytes)
                for w in ops[last].results
            )
            expected.append((i, last if taken else last + 1, sizes.get(v, v.nbytes)))
    assert [(v.start, v.stop, v.live.nbytes) for v in found.values if v.stop - v.start < len(ops)]
    temporaries = [v for v in found.values if v.reason not in ("argument", "constant", "output")]
    assert sorted((v.start, v.stop, v.live.nbytes) for v in temporaries) == sorted(expected)
    assert len(expected) > 4


def test_what_nothing_reads_is_scratch():
    def loss(x):
        return jnp.sum(x) * lax.stop_gradient(jnp.sum(lax.top_k(x, 5)[0]))

    report = reported(loss, f32(64, 128))
    (numbers,) = [v for v in report.lifetimes[0].values if v.reason == "scratch"]
    assert (numbers.live.primitive, numbers.live.aval.dtype) == ("top_k", "int32")
    assert (numbers.stop - numbers.start, numbers.read_at) == (1, None)


def long_program(layers):
    def loss(x):
        for i in range(layers):
            # The numbers of the largest are read by nothing.
            largest = lax.stop_gradient(jnp.sum(lax.top_k(x, 2)[0]))
            x = jnp.sin(x[: x.shape[0] - i % 2]) * jnp.sum(x) + largest
        return jnp.sum(x)

    return lower(program(loss, ((4 * layers,), F32)), GPU)


@pytest.mark.integration
@pytest.mark.parametrize("most", [200, 300, 400])
def test_small_values_are_added_up(most):
    lowered = long_program(100)
    whole = lifetimes(lowered, NoPlaces)
    assert len(whole.values) > most
    found = lifetimes(lowered, NoPlaces, most=most)
    add_up(found)
    assert len(found.values) <= most
    sums = [v for v in found.values if v.live.aval is None]
    assert any(v.live.count > 1 for v in sums)
    for a, b in itertools.pairwise(sums):
        assert a.live.count > 0
        follows = (a.live.kind, a.reason, a.stop) == (b.live.kind, b.reason, b.start)
        if follows:
            assert (a.live.nbytes, a.live.count) != (b.live.nbytes, b.live.count)
    assert (found.nbytes, by_kind(live_at(found, found.at))) == (
        whole.nbytes,
        by_kind(live_at(whole, whole.at)),
    )
    if len(found.points) == len(whole.points):
        assert found.points == whole.points
        for i in range(len(found.points)):
            assert by_kind(live_at(found, i)) == by_kind(live_at(whole, i))
            count = sum(v.live.count for v in live_at(found, i))
            assert count == len(live_at(whole, i))
    biggest = sorted((v.live.nbytes for v in whole.values), reverse=True)[: most // 2 - 1]
    assert biggest[0] == max(v.live.nbytes for v in found.values if v not in sums)


def test_long_programs_are_thinned_to_their_highest_points():
    lowered = long_program(100)
    whole, found = (lifetimes(lowered, NoPlaces, most=most) for most in (10_000, 200))
    assert len(found.points) == 200 // 9 < len(whole.points)
    assert found.points[found.at] == whole.points[whole.at]
    assert set(found.points) <= set(whole.points)


@pytest.mark.slow
def test_ten_thousand_values():
    lowered = long_program(2000)
    found = lifetimes(lowered, NoPlaces)
    add_up_quickly(found)
    assert len(found.values) <= 10_000


def add_up_quickly(found):
    change = Counter()
    for v in found.values:
        change[v.start] += v.live.nbytes
        change[v.stop] -= v.live.nbytes
    now = 0
    for i, point in enumerate(found.points):
        now += change[i]
        assert now == point.nbytes, i


FIXTURES = (
    (gpt, "loss_scan"),
    (gpt, "loss"),
    (stack8, "scan_none"),
    (train_step, "train_step_checkpointed"),
)


@pytest.mark.integration
@pytest.mark.parametrize("on", PLACES)
@pytest.mark.parametrize(("module", "name"), FIXTURES)
def test_fixtures(module, name, on):
    inputs = getattr(module, f"{name}_inputs", None) or module.example_inputs
    reported(getattr(module, name), *inputs(), on=on)


# A program of checkpoints around others, of some of which JAX traces the primal jaxpr anew.
@pytest.mark.integration
@pytest.mark.parametrize("seed", [22, 45])
def test_each_judged_checkpoint_has_those_without_it(seed):
    made = random_programs.program(seed)
    found = program_oracle.module(made.source(), f"program{seed}")
    report = reported(found.loss, *found.loss_inputs())
    for checkpoint in report.checkpoints:
        if checkpoint.peak_without_nbytes is not None:
            assert report.without(checkpoint).nbytes == checkpoint.peak_without_nbytes

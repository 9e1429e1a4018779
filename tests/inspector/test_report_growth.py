"""The work of a report grows with the program: it is counted at one size and at twice that size."""

import math
import sys
from pathlib import Path

import jax
import pytest

import jaxresid
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.checkpoints import counterfactuals
from jaxresid.inspector.memory.rules import fusion, kernels
from jaxresid.inspector.memory.rules.arrays import Joined, joined, listed
from jaxresid.inspector.program.ops import Value
from jaxresid.inspector.report import subject
from tests.benchmarks import growth

PACKAGE = str(Path(jaxresid.__file__).parent / "inspector")


def loss_of(source):
    """Return the loss of a benchmark's program, and its arguments."""
    module = {}
    exec(compile(growth.HEAD + source, "grown.py", "exec"), module)
    return module["loss"], module["loss_inputs"]()


def jitted(n):
    return f"@jax.jit\n{growth.operations(n)}"


def wide(n):
    """Return a module whose loss reads one array in many dots."""
    return (
        "def loss(ws, x):\n    return sum(jnp.sum(jnp.tanh(x @ w)) for w in ws)\n\n\n"
        f"def loss_inputs():\n    return [f32(8, 8)] * {n}, f32(1, 8)\n"
    )


def lines_run(run):
    """Return how many lines of the inspector a call executes."""
    count = 0

    def in_function(frame, event, argument):
        nonlocal count
        count += event == "line"
        return in_function

    def called(frame, event, argument):
        return in_function if frame.f_code.co_filename.startswith(PACKAGE) else None

    before = sys.gettrace()
    sys.settrace(called)
    try:
        run()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.integration
@pytest.mark.parametrize(
    ("source", "n"),
    [
        (growth.products, 12),
        (growth.squares, 12),
        (growth.operations, 24),
        (jitted, 32),
        (growth.shared, 32),
    ],
)
def test_twice_the_program_is_at_most_a_little_more_than_twice_the_lines(source, n):
    def lines(size):
        fun, args = loss_of(source(size))
        return lines_run(lambda: jaxresid.inspect(fun, on="gpu:h100")(*args))

    lines(4)  # what is cached for all programs
    small, middle, large = lines(n), lines(2 * n), lines(4 * n)
    assert large - middle < 2.15 * (middle - small)


@pytest.mark.integration
def test_what_is_fused_is_decided_once_for_each_reader_of_an_array():
    def lines(size):
        fun, args = loss_of(wide(size))
        found = subject(Question(fun, args, on="gpu:h100"))
        return lines_run(lambda: fusion.fusions(found.program.block, found.profile))

    small, middle, large = lines(24), lines(48), lines(96)
    assert large - middle < 2.15 * (middle - small)


@pytest.mark.integration
def test_of_twice_the_checkpoints_as_many_are_taken_away(monkeypatch):
    lowered = []

    def counting(program, profile, lower=counterfactuals.lower):
        lowered.append(program)
        return lower(program, profile)

    monkeypatch.setattr(counterfactuals, "lower", counting)

    def count(n):
        lowered.clear()
        fun, args = loss_of(growth.checkpoints(n))
        assert len(jaxresid.inspect(fun, on="gpu:h100")(*args).checkpoints) == n
        return len(lowered)

    assert count(20) <= count(12) <= 8


@pytest.mark.parametrize("source", [growth.squares, growth.products])
def test_the_arrays_of_a_chain_are_not_written_out_for_each_of_its_values(monkeypatch, source):
    written = []

    def counting(groups):
        made = joined(groups)
        written.append(len(made) if isinstance(made, tuple) else 1)
        return made

    for module in (kernels, fusion):
        monkeypatch.setattr(module, "joined", counting)

    def count(n):
        written.clear()
        fun, args = loss_of(source(n))
        jaxresid.inspect(fun, on="gpu:h100")(*args)
        return sum(written)

    assert count(160) < 2.3 * count(80)


def test_the_kernels_that_compute_a_value_are_counted_up_to_a_bound(monkeypatch):
    sizes = []

    def counting(*args, find=fusion._consumer_kernels):
        found = find(*args)
        sizes.extend(map(len, found.values()))
        return found

    monkeypatch.setattr(fusion, "_consumer_kernels", counting)
    fun, args = loss_of(growth.products(100))
    jaxresid.inspect(fun, on="gpu:h100")(*args)
    assert 4 < max(sizes) <= 64


def test_joined_arrays_are_each_listed_once_in_order():
    values = [Value((i,), "float32", 4) for i in range(300)]
    one, other = tuple(values[:150]), tuple(values[100:200])
    both = joined([one, other])
    assert isinstance(both, Joined)
    assert listed(joined([both, (), joined([both, tuple(values[250:])]), one])) == (
        *values[:200],
        *values[250:],
    )
    assert joined([both, both]) is both
    assert joined([(), one]) is one
    assert joined([one[:3], one[1:5]]) == one[:5]
    assert joined([]) == ()


@pytest.mark.parametrize("depth", [4, pytest.param(8, marks=pytest.mark.integration)])
def test_a_function_called_many_times_is_as_its_body_written_as_often(depth):
    shared, args = loss_of(growth.shared(2**depth))
    inlined, _ = loss_of(growth.operations(2**depth))
    for on in ("gpu:h100", "tpu:v5e"):
        of_calls, as_written = (jaxresid.inspect(f, on=on)(*args) for f in (shared, inlined))
        assert of_calls.peak.nbytes == as_written.peak.nbytes
        assert of_calls.peak.curve == as_written.peak.curve
        assert of_calls.cost == as_written.cost
        nbytes = [sum(r.nbytes for r in each.residuals) for each in (of_calls, as_written)]
        assert nbytes[0] == nbytes[1] == 2**depth * 64 * 4


@pytest.mark.integration
def test_the_residuals_of_shared_calls_are_those_that_jax_keeps():
    fun, args = loss_of(growth.shared(2**6))
    report = jaxresid.inspect(fun)(*args)
    _, vjp = jax.eval_shape(lambda h: jax.vjp(fun, h), *args)
    sizes = sorted(math.prod(leaf.shape) * 4 for leaf in jax.tree.leaves(vjp))
    assert sorted(r.nbytes for r in report.residuals) == sizes
    assert all(r.consumers for r in report.residuals)

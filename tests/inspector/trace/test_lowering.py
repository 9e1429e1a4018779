"""What is handed to the compiler is what `jax.jit` would hand to it."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name

from fixtures.inspect import train_step
from jaxresid.base.errors import TraceError
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.report import subject
from jaxresid.inspector.trace.lowering import lowered, lowered_forward
from jaxresid.xla.compiler import compilation
from jaxresid.xla.job import Job
from jaxresid.xla.places import parse_place
from tests.where import TESTS


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def compiled(fun, *args, forward=False, **options):
    traced = subject(Question(fun, args, **options)).trace
    module = (lowered_forward if forward else lowered)(traced, "cpu")
    found = compilation(Job(module, parse_place("cpu")))
    assert found.error is None
    return found


@functools.cache
def against_jax(on, *names, **variables):
    """Each case's figures, from the same script in a process with eight devices."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)]),
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": "8",
        "TPU_SKIP_MDS_QUERY": "1",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        **variables,
    }
    done = subprocess.run(
        [sys.executable, str(TESTS / "compile_oracle.py"), on, *names],
        check=False,
        capture_output=True,
        text=True,
        env=environment,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(lines) == len(names), done.stderr[-2000:]
    return {line["case"]: line for line in lines}


FEW = ("mlp mixed", "scan fsdp", "forward of scan mixed", "jitted shardings")
MORE = ("mlp data", "mlp fsdp", "mlp tensor", "scan mixed", "attention mixed", "scan data explicit")
TPU = (*FEW, "host state", "scan mixed")


# What libtpu's own figure for temporaries has beside those that it assigns.
OF_LIBTPU = 15_872


def same_but_for_the_code(found):
    """The compile of a TPU stops when the buffers are assigned."""
    ours, theirs = dict(found["ours"][0]), dict(found["jax"][0])
    assert (ours.pop("generated_code"), theirs.pop("generated_code") > 0) == (None, True)
    ours["temp"] += OF_LIBTPU
    assert ours == theirs
    assert found["ours"][1] == found["jax"][1]


def same(found):
    assert found["ours"][0] == found["jax"][0]
    assert found["ours"][1] == found["jax"][1]


@pytest.mark.integration
@pytest.mark.parametrize("case", FEW)
def test_the_same_figures_as_jax_on_the_cpu(case):
    same(against_jax("cpu", *FEW)[case])


@pytest.mark.slow
@pytest.mark.parametrize("case", MORE)
def test_the_same_figures_as_jax_on_the_cpu_of_more(case, jax_version):
    if "explicit" in case and jax_version < (0, 7, 2):
        pytest.skip("explicit axes cannot be traced here before jax 0.7.2")
    same(against_jax("cpu", case)[case])


@pytest.mark.slow
@pytest.mark.parametrize("case", ["mlp mixed", "forward of mlp tensor"])
def test_the_same_figures_where_the_partitioner_is_gspmd(case):
    same(against_jax("cpu", case, WITHOUT_SHARDY="1")[case])


@pytest.mark.slow
@pytest.mark.tpu
@pytest.mark.parametrize("case", TPU)
def test_the_same_figures_as_jax_on_a_tpu(case, jax_version):
    if case == "host state" and jax_version < (0, 7, 1):
        pytest.skip("the CPU has no pinned_host to trace with before jax 0.7.1")
    found = against_jax("tpu:v5e:2x4", case)[case]
    same_but_for_the_code(found)
    if case == "host state":
        assert found["ours"][0]["host_output"] == found["ours"][0]["host_argument"] == 2**20
        assert found["ours"][0]["host_alias"] == 2**20


def test_an_argument_that_nothing_reads_is_held_all_the_same():
    found = compiled(lambda x, y: jnp.sum(x**2), f32(256), f32(1024))
    assert found.stats["argument_nbytes"] == 4 * (256 + 1024)


def test_auxiliary_outputs_are_outputs():
    def loss(x):
        return jnp.sum(jnp.sin(x)), {"h": jnp.cos(x)}

    assert compiled(loss, f32(256), has_aux=True).output_shards == ((), (256,), (256,))


@pytest.mark.integration
def test_what_is_given_away_is_reused():
    _, _, batch = inputs = train_step.train_step_donated_inputs()
    found = compiled(train_step.train_step_donated, *inputs)
    given = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(inputs[:2]))
    assert found.stats["alias_nbytes"] == given
    taken = given + sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(batch))
    assert found.stats["argument_nbytes"] == taken


def test_the_forward_pass_gives_the_residuals_in_their_order():
    constant = jnp.linspace(0.0, 1.0, 6)

    def body(x, w):
        return jnp.tanh(checkpoint_name(x @ w, "product")) * constant, None

    def loss(x, ws):
        x, _ = jax.lax.scan(body, x, ws)
        return jnp.sum(jnp.sin(x) * constant)

    args = f32(5, 6), f32(3, 6, 6)
    traced = subject(Question(loss, args)).trace
    found = compilation(Job(lowered_forward(traced, "cpu"), parse_place("cpu")))
    assert len(traced.kept) > 3
    assert found.output_shards[traced.num_outputs :] == tuple(v.aval.shape for v in traced.kept)


def test_a_buffer_says_the_users_line():
    def loss(x, w):
        return jnp.sum(jnp.sin(x @ w))  # this line

    found = compiled(loss, f32(512, 256), f32(256, 512))
    text = Path(__file__).read_text().splitlines()
    lines = {text[b.line - 1] for b in found.buffers if b.file.endswith("test_lowering.py")}
    assert any("# this line" in line for line in lines)


def test_parameters_are_called_what_matching_reads():
    """XLA hands on these names; `residuals.matching` takes an argument's index from them."""
    traced = subject(Question(lambda w, x: jnp.sum(w @ x), (jnp.ones((4, 4)), jnp.ones(4)))).trace
    code = lowered(traced, "cpu").code
    assert [f"operands[{i}]".encode() in code for i in range(3)] == [True, True, False]


def test_calls_back_into_python_are_lowered_for_devices_that_are_here():
    def loss(x):
        jax.debug.print("{}", x[0])
        return jnp.sum(jnp.sin(x))

    assert compiled(loss, f32(256)).stats["argument_nbytes"] == 1024
    with pytest.raises(TraceError, match=r"calls back into Python .*debug\.print"):
        lowered(subject(Question(loss, (f32(256),))).trace, "tpu")

"""What the compiler is asked and what is made of its answers, each in a process of its own where a
platform other than the CPU is meant."""

import threading
import time
from dataclasses import replace

import jax
import jax.numpy as jnp
import psutil
import pytest

from fixtures.inspect import offload, train_step
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.report import subject
from jaxresid.inspector.trace.lowering import lowered
from jaxresid.xla import compiler, places, tpus
from jaxresid.xla.compiler import compilation
from jaxresid.xla.hlo.memory import memory_stats
from jaxresid.xla.job import Job, LoweredModule
from jaxresid.xla.places import parse_place
from jaxresid.xla.processes.process import execute

MIB = 2**20


def of(fun, inputs, on="cpu", **options):
    module = lowered(subject(Question(fun, inputs, **options)).trace, parse_place(on).platform)
    return Job(module, parse_place(on))


def square(n):
    return jax.ShapeDtypeStruct((n, n), jnp.float32)


def loss(x):
    return jnp.sum(jnp.sin(x @ x))


@pytest.mark.integration
@pytest.mark.parametrize("name", ["plain", "offloaded"])
def test_the_figures_are_those_of_jax(name):
    fun, inputs = getattr(offload, name), offload.inputs()
    found = compilation(of(fun, inputs))
    gradients = jax.value_and_grad(fun, argnums=(0, 1, 2))
    memory = jax.jit(gradients).lower(*inputs).compile().memory_analysis()
    for figure in ("temp", "argument", "output", "alias", "generated_code", "host_temp"):
        assert found.stats[f"{figure}_nbytes"] == getattr(memory, f"{figure}_size_in_bytes")
    assert found.error is None
    assert found.compiler.startswith("jaxlib ")


@pytest.mark.integration
def test_the_tutorials_temporaries():
    def temp(fun):
        return compilation(of(fun, offload.inputs(), argnums=(0, 1))).stats["temp_nbytes"] / MIB

    assert round(temp(offload.plain), 2) == 17.0
    assert round(temp(offload.offloaded), 2) == 6.25


@pytest.mark.integration
def test_the_cpus_peak_is_all_that_it_allocates():
    step, inputs = train_step.train_step_donated, train_step.train_step_donated_inputs()
    stats = compilation(of(step, inputs)).stats
    assert stats["alias_nbytes"] > 0
    assert stats["peak_nbytes"] == (
        stats["argument_nbytes"]
        + stats["output_nbytes"]
        + stats["temp_nbytes"]
        - stats["alias_nbytes"]
    )


@pytest.mark.integration
def test_the_memory_of_cpu_devices_is_the_machines():
    memory = psutil.virtual_memory().total
    found = compilation(of(loss, (square(8),)))
    assert found.capacity_nbytes == memory
    assert not found.notes
    two = execute(
        Job(LoweredModule(of(loss, (square(8),)).module.code, "cpu", 2), parse_place("cpu"))
    )
    assert two.capacity_nbytes == memory // 2
    assert two.notes == ("the memory is this machine's, shared by 2 CPU devices",)


def test_flags_reach_the_compiler(tmp_path):
    flags = (("xla_dump_to", str(tmp_path)), ("xla_dump_hlo_as_text", "true"))
    found = compilation(Job(of(loss, (square(64),)).module, parse_place("cpu"), flags))
    assert found.error is None
    assert list(tmp_path.glob("*after_optimizations.txt"))


def test_a_flag_that_is_none():
    found = compilation(
        Job(of(loss, (square(8),)).module, parse_place("cpu"), (("xla_no_such_flag", "1"),))
    )
    assert "xla_no_such_flag" in found.error
    assert "\n" not in found.error


def test_more_devices_than_there_are():
    module = LoweredModule(of(loss, (square(8),)).module.code, "cpu", 4096)
    error = compilation(Job(module, parse_place("cpu"))).error
    assert error.startswith("the program is split over 4096 devices, but this machine has ")


def test_no_gpu_here():
    error = compilation(Job(LoweredModule(b"", "cuda"), parse_place("gpu"))).error
    assert error.startswith("jax finds no GPU on this machine")
    assert "\n" not in error


def test_what_is_no_program():
    error = compilation(Job(LoweredModule(b"nonsense", "cpu"), parse_place("cpu"))).error
    assert error
    assert "\n" not in error


def test_without_libtpu(monkeypatch):
    monkeypatch.setattr(places.importlib.util, "find_spec", lambda name: None)
    error = compilation(Job(LoweredModule(b"", "tpu"), parse_place("tpu:v5e:2x2"))).error
    assert "pip install 'jaxresid[tpu]'" in error


@pytest.mark.tpu
def test_the_tutorial_on_a_tpu(jax_version):
    def stats(name):
        return execute(of(getattr(offload, name), getattr(offload, f"{name}_inputs")(), TPU)).stats

    found = stats("offloaded")
    assert found["host_temp_nbytes"] == 2.5 * MIB
    assert found["argument_nbytes"] == 20.25 * MIB
    if jax_version >= (0, 7, 1):  # whose CPU has pinned_host to trace with
        found = stats("weights_on_host")
        assert found["host_temp_nbytes"] == 2.5 * MIB
        assert found["host_argument_nbytes"] == 20 * MIB
        assert found["argument_nbytes"] == 0.25 * MIB


TPU = "tpu:v5e:2x2"


@pytest.mark.tpu
def test_host_memory_is_none_of_the_devices(jax_version):
    """Weights of 19.5 GiB in host memory, and the program fits into 15.75 GiB."""
    if jax_version < (0, 7, 1):
        pytest.skip("the CPU of this JAX has no pinned_host to trace with")
    inputs = offload.inputs(layers=10_000, weight_memory="pinned_host")
    found = execute(of(offload.weights_on_host, inputs, TPU))
    assert found.stats["host_argument_nbytes"] > found.capacity_nbytes
    assert found.stats["peak_nbytes"] < 8 * MIB


@pytest.mark.tpu
def test_too_big_for_a_tpu_is_a_result():
    found = execute(of(loss, (square(2**16),), TPU))
    assert found.error is None
    assert found.is_out_of_memory
    assert found.capacity_nbytes == int(15.75 * 2**30)
    assert found.required_nbytes > 2 * 4 * 2**32  # the argument, its gradient and something


@pytest.mark.tpu
def test_a_tpus_memory_is_known_of_a_program_that_fits():
    found = execute(of(loss, (square(128),), "tpu:v5e:2x4"))
    assert found.error is None
    assert found.capacity_nbytes == int(15.75 * 2**30)
    assert found.stats["peak_nbytes"] >= 2 * 4 * 128**2
    assert ", libtpu " in found.compiler


@pytest.mark.tpu
def test_a_shape_that_libtpu_refuses():
    place = replace(parse_place("tpu:v5e:4x4"), text="tpu:v5e:3x3", topology="v5e:3x3", devices=9)
    found = execute(Job(of(loss, (square(128),), TPU).module, place))
    assert found.error.startswith("tpu:v5e:3x3 is not available")
    assert "\n" not in found.error
    assert not found.transient


@pytest.mark.slow
@pytest.mark.tpu
@pytest.mark.parametrize("generation", sorted({it.generation for it in tpus.topologies()}))
def test_the_listed_memory_is_what_libtpu_says(generation):
    topology = next(it for it in tpus.topologies() if it.generation == generation)
    found = execute(of(loss, (square(128),), topology.text))
    assert found.error is None
    assert found.capacity_nbytes == topology.memory_nbytes


def allocation(nbytes, space):
    """A BufferAssignmentProto of one temporary, of less than 128 bytes."""
    return bytes([0x1A, 4, 0x10, nbytes, 0x40, space])


def test_what_a_tpu_has_on_the_chip_is_not_its_memory():
    assignment = allocation(7, 0) + allocation(5, 1) + allocation(3, 5) + allocation(2, 6)
    found = memory_stats(assignment, "tpu")
    assert (found["temp_nbytes"], found["host_temp_nbytes"]) == (7, 3)
    # NCCL's buffers have a space of their own on a GPU.
    assert memory_stats(assignment, "cuda")["temp_nbytes"] == 14


@pytest.mark.parametrize(("nbytes", "sure"), [(95, True), (96, False)])
def test_when_libtpu_can_say_no_more(nbytes, sure):
    assert compiler._is_sure(95, b"", allocation(nbytes, 0)) is sure


@pytest.mark.parametrize(
    ("code", "capacity", "is_whole"),
    [(b"dot", 100, False), (b"tpu_custom_call", 100, True), (b"dot", None, True)],
)
def test_which_compiles_for_a_tpu_may_end_early(code, capacity, is_whole, monkeypatch):
    def compiled(code, devices, options):
        time.sleep(0.3)
        return "executable"

    monkeypatch.setattr(compiler.jax_compat, "compiled", compiled)
    monkeypatch.setattr(compiler.dump, "read", lambda folder: (b"", allocation(95, 0)))
    job = Job(LoweredModule(code, "tpu"), parse_place("tpu:v5e"))
    found = compiler._compiled(job, (), {}, "", capacity)
    assert found == ("executable" if is_whole else None)


def test_a_compile_ends_when_its_buffers_say_all(monkeypatch):
    monkeypatch.setattr(compiler.dump, "read", lambda folder: (b"module", b"assignment"))
    is_over = threading.Event()

    def whole():
        is_over.wait(0.2)
        return "executable"

    assert compiler._until_assigned(whole, "") is None
    asked = []

    def says_nothing(*dumped):
        asked.append(dumped)
        return False

    assert compiler._until_assigned(whole, "", says_nothing) == "executable"
    assert asked == [(b"module", b"assignment")]


def test_kernels_are_tried_only_where_one_that_is_not_fails(monkeypatch):
    asked = []

    def compiled(code, devices, options):
        asked.append(options)
        if code == b"a" and options.get("xla_gpu_autotune_level") == "0":
            raise ValueError("no supported config")
        return code

    monkeypatch.setattr(compiler.jax_compat, "compiled", compiled)
    monkeypatch.setattr(compiler.dump, "read", lambda folder: (b"", b""))

    def levels(code, on="gpu:h100", **options):
        asked.clear()
        job = Job(LoweredModule(code, "cuda"), parse_place(on))
        assert compiler._compiled(job, (), options, "", None) == code
        return [each.get("xla_gpu_autotune_level") for each in asked]

    assert levels(b"b") == ["0"]
    assert levels(b"a") == ["0", None]
    assert levels(b"b", xla_gpu_autotune_level="4") == ["4"]
    assert levels(b"b", on="gpu") == levels(b"b", on="tpu:v5e") == [None]

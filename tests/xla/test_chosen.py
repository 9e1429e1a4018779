"""The place that an answer is for where none is asked for."""

import dataclasses
import json
import os
import subprocess
import sys

import pytest

from jaxresid import jax_compat
from jaxresid.base.errors import InputsError
from jaxresid.cli.options.places import placed
from jaxresid.cli.options.request import Request
from jaxresid.xla import chosen
from jaxresid.xla.chosen import choose, place_here, place_of_device
from jaxresid.xla.places import Place, parse_place

H100 = ("gpu", "NVIDIA H100 80GB HBM3", "cuda 12080")


@pytest.fixture(autouse=True)
def _nothing_remembered():
    place_here.cache_clear()
    yield
    place_here.cache_clear()


def options(*on, **more):
    return Request("m:f", None, False, (), (), False, None, False, on=on, **more)


@pytest.mark.parametrize(
    ("device", "place"),
    [
        (H100, "gpu:h100"),
        (("gpu", "NVIDIA H200", "cuda 13000"), "gpu:h200"),
        # A GPU that is in no table is compiled for where it is.
        (("gpu", "NVIDIA GeForce RTX 4090", "cuda 12080"), "gpu"),
        (("gpu", "AMD Instinct MI300X", "rocm 60300"), None),
        (("tpu", "TPU v5 lite", ""), "tpu:v5e"),
        (("tpu", "TPU v5", ""), "tpu:v5p"),
        (("tpu", "TPU v6 lite", ""), "tpu:v6e"),
        (("tpu", "TPU v99", ""), None),
        (("cpu", "cpu", "<unknown>"), None),
    ],
)
def test_a_device_is_a_place(device, place):
    assert place_of_device(*device) == place
    if place is not None:
        assert parse_place(place).text == place


def test_what_is_asked_for_comes_first(monkeypatch):
    monkeypatch.setattr(jax_compat, "first_device", lambda: H100)
    asked = choose("tpu:v5e")
    assert (asked.text, asked.origin) == ("tpu:v5e", "as asked")
    assert choose(asked) is asked
    here = choose(None)
    assert (here.text, here.origin) == ("gpu:h100", "the accelerator that JAX sees here")


def test_a_gpu_compiles_where_it_is_if_nothing_here_compiles_for_its_name(monkeypatch):
    monkeypatch.setattr(jax_compat, "first_device", lambda: H100)
    monkeypatch.setattr(chosen, "why_unavailable", lambda place: "needs a plugin")
    assert choose(None, compiles=True).text == "gpu"
    assert choose(None).text == choose("gpu:h100", compiles=True).text == "gpu:h100"
    with pytest.raises(InputsError, match="set XLA_CLIENT_MEM_FRACTION"):
        choose(None, compiles=True, memory_fraction=0.5)
    monkeypatch.setattr(chosen, "why_unavailable", lambda place: None)
    assert choose(None, compiles=True).text == "gpu:h100"


def test_without_an_accelerator_it_is_the_default(monkeypatch):
    monkeypatch.setattr(jax_compat, "first_device", lambda: ("cpu", "cpu", ""))
    found = choose(None)
    assert found.text == chosen.DEFAULT == "gpu:h100"
    assert found.origin == "the default, as JAX sees no accelerator here"


def test_jax_is_asked_elsewhere_only_where_there_may_be_an_accelerator(monkeypatch):
    asked = []
    monkeypatch.setattr(jax_compat, "first_device", lambda: None)
    monkeypatch.setattr(chosen, "_asked", lambda: asked.append(1) or H100)
    monkeypatch.setattr(chosen, "may_have_accelerator", lambda: False)
    assert place_here() is None and not asked
    place_here.cache_clear()
    monkeypatch.setattr(chosen, "may_have_accelerator", lambda: True)
    assert place_here() == place_here() == "gpu:h100"
    assert asked == [1]


@pytest.mark.parametrize(
    ("platforms", "package", "file", "may"),
    [
        ("", "jax_cuda12_plugin", "/dev/nvidia0", True),
        ("cuda,cpu", "jax_cuda12_plugin", "/dev/nvidia0", True),
        ("cpu", "jax_cuda12_plugin", "/dev/nvidia0", False),
        ("", "libtpu", "/dev/accel0", True),
        # A wheel is no accelerator; nor is a device for which JAX has no plugin.
        ("", "libtpu", "/dev/nvidia0", False),
        ("", "jax_cuda12_plugin", "/dev/null", False),
        ("", "numpy", "/dev/nvidia0", False),
    ],
)
def test_a_machine_that_may_have_one(monkeypatch, platforms, package, file, may):
    monkeypatch.setenv("JAX_PLATFORMS", platforms)
    monkeypatch.setattr(chosen.importlib.util, "find_spec", lambda name: name == package or None)
    monkeypatch.setattr(
        chosen.glob, "glob", lambda pattern: [file] * file.startswith(pattern.partition("[")[0])
    )
    assert chosen.may_have_accelerator() is may


@pytest.mark.integration
def test_another_process_says_what_jax_sees():
    assert chosen._asked()[0] == jax_compat.import_jax().default_backend()


@pytest.mark.parametrize("said", ["", "no json", json.dumps(["gpu"])])
def test_an_answer_that_cannot_be_read_is_none(monkeypatch, said):
    done = subprocess.CompletedProcess([], 0, stdout=f"{said}\n")
    monkeypatch.setattr(chosen.subprocess, "run", lambda *args, **options: done)
    assert chosen._asked() is None


@pytest.mark.integration
def test_this_process_starts_no_backend():
    code = (
        "import jax; from jaxresid import jax_compat;"
        "from jax._src import xla_bridge;"
        "print(jax_compat.first_device(), xla_bridge.backends_are_initialized())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["None", "False"]


def test_the_options_of_the_command_line():
    given, (place,) = placed(options("gpu:h100", memory_fraction=0.5, margin=2**30), compiles=False)
    whole = parse_place("gpu:h100", memory_fraction=1.0).memory_nbytes
    assert place.memory_nbytes == whole // 2 - 2**30
    assert (place.origin, given.on, given.on_origin) == (
        "given with --on",
        ("gpu:h100",),
        "given with --on",
    )
    given, (place,) = placed(options(memory_fraction=0.5), compiles=False)
    assert (given.on, place.memory_nbytes) == (("gpu:h100",), whole // 2)
    assert given.on_origin == place.origin == choose(None).origin


def test_nothing_is_prepared_where_nothing_is_compiled_for_one_device(monkeypatch):
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    placed(options("tpu:v5e"), compiles=False)
    assert "JAX_PLATFORMS" not in os.environ


@pytest.mark.parametrize("on", ["gpu:h1000", "somewhere", "tpu:v5e:3"])
def test_what_is_no_place(on):
    with pytest.raises(InputsError):
        placed(options(on), compiles=False)


def test_who_chose_it_makes_no_other_place():
    one = parse_place("gpu:h100")
    assert one == dataclasses.replace(one, origin="a file", memory_nbytes=7)
    assert isinstance(one, Place)

"""The places a program can be compiled for: what is understood, and what is said of the rest."""

import importlib.metadata
import importlib.util
import os
import subprocess
import sys

import pytest

from jaxresid.base.errors import InputsError
from jaxresid.xla import places
from jaxresid.xla.gpus import GPUS
from jaxresid.xla.places import for_devices, parse_place, topologies, why_unavailable


@pytest.mark.parametrize(
    ("text", "written", "platform", "topology", "devices"),
    [
        ("cpu", "cpu", "cpu", "", None),
        ("GPU", "gpu", "cuda", "", None),
        ("cuda", "gpu", "cuda", "", None),
        ("tpu:v5e:2x4", "tpu:v5e:2x4", "tpu", "v5e:2x4", 8),
        (" tpu:V5P:2x2x1 ", "tpu:v5p:2x2x1", "tpu", "v5p:2x2x1", 4),
        # A chip of these is two devices.
        ("tpu:v4:2x2x1", "tpu:v4:2x2x1", "tpu", "v4:2x2x1", 8),
        # As many as the program is split over.
        ("tpu:v5e", "tpu:v5e", "tpu", "", None),
        ("gpu:h100", "gpu:h100", "cuda", "", None),
        ("cuda:H100:8", "gpu:h100:8", "cuda", "1x1x8", 8),
        ("gpu:h100-sxm:2x8", "gpu:h100:2x8", "cuda", "1x2x8", 16),
        ("gpu:a100", "gpu:a100-80", "cuda", "", None),
        # No listed shape, but libtpu may know it.
        ("tpu:v5e:2x6", "tpu:v5e:2x6", "tpu", "v5e:2x6", 12),
    ],
)
def test_a_place(text, written, platform, topology, devices):
    found = parse_place(text)
    assert (found.text, found.platform, found.topology, found.devices) == (
        *(written, platform, topology),
        devices,
    )


@pytest.mark.parametrize(
    ("text", "instead"),
    [
        ("cup", "did you mean `cpu`?"),
        ("tpu", "write tpu:v5e (known: v2, v3, v4, v5e"),
        ("tpu:", "write tpu:v5e (known: v2"),
        ("v6e:4x4", "write tpu:v6e:4x4"),
        ("v5e-16", "write tpu:v5e:4x4"),
        ("v5litepod-8", "write tpu:v5e:2x4"),
        ("tpu:v5litepod-8", "tpu:v5e:2x4"),
        ("tpu:v4-8", "tpu:v4:2x2x1"),
        ("tpu:ironwood:2x2x1", "tpu:tpu7x:2x2x1"),
        ("tpu:v9:2x2", "known: v2, v3, v4, v5e, v5p, v6e, tpu7x)"),
        ("tpu:v5e:2*4", "did you mean `2x4`? (known: 2x4, 2x2, 4x4, 4x8, 1x1, 8x8"),
        ("tpu:v5e:8", "v5e has no topology '8' (known: 4x8, 8x8, 8x16, 1x1"),
        ("tpu:v5e:2x2x2", "(known: 2x2, 2x4"),
        ("tpu:v5e:3x4", "(known: 2x4, 4x4"),
        ("tpu:v5p:2x3x1", "(known: 2x2x1"),
        # libtpu 0.0.52 divides by it and takes the process along.
        ("tpu:v5e:0x2", "v5e has no topology '0x2'"),
        ("tpu:v5p:2x2x2x2", "(known: 2x2x2, 2x2x1"),
        ("", "write cpu, gpu:NAME, such as gpu:h100 or gpu:h100:8, or tpu:NAME"),
        ("h100", "write gpu:h100"),
        ("H100:2x8", "write gpu:h100:2x8"),
        ("gpu:h10", "unknown GPU 'h10'; did you mean `h100`? (known: h100, h200, v100"),
        ("gpu:l4", "another one by gpu:FILE"),
        ("gpu:h100:0", "write gpu:h100:8, or gpu:h100:2x8 for two hosts of eight"),
        ("gpu:h100:8x", "'8x' is not a number of GPUs"),
        ("gpu:no/such.txtpb", "cannot read no/such.txtpb: No such file"),
    ],
)
def test_what_is_no_place(text, instead):
    with pytest.raises(InputsError) as caught:
        parse_place(text)
    message = str(caught.value)
    assert instead in message
    assert "\n" not in message


def test_every_listed_topology_is_a_place():
    for topology in topologies():
        assert parse_place(topology.text).devices == topology.devices
        assert 2**30 * 7 < topology.memory_nbytes < 2**30 * 100


def test_what_a_message_suggests_is_a_place():
    with pytest.raises(InputsError) as caught:
        parse_place("tpu:v5e-8")
    (suggested,) = [word for word in str(caught.value).rstrip("; ").split() if "2x4" in word]
    assert parse_place(suggested.rstrip(";")).devices == 8


@pytest.mark.parametrize(
    ("text", "devices", "topology"),
    [
        ("gpu:h100", 1, "1x1x1"),
        ("gpu:h100", 4, "1x1x4"),
        ("gpu:h100", 16, "1x2x8"),
        ("gpu:h100:2x8", 16, "1x2x8"),
        ("tpu:v5e", 1, "v5e:1x1"),
        ("tpu:v5e", 3, "v5e:2x2"),
        ("cpu", 8, ""),
    ],
)
def test_a_place_gets_as_many_devices_as_are_needed(text, devices, topology):
    assert for_devices(parse_place(text), devices).topology == topology


def test_a_gpu_from_a_file(tmp_path):
    h100 = parse_place("gpu:h100")
    file = tmp_path / "mine.txtpb"
    file.write_text(h100.target_config)
    found = parse_place(f"gpu:{file}:2x8")
    assert (found.text, found.chip, found.topology) == (f"gpu:{file}:2x8", "h100", "1x2x8")
    assert (found.target_config, found.memory_nbytes) == (h100.target_config, h100.memory_nbytes)
    file.write_text(h100.target_config.replace("NVIDIA H100 80GB HBM3", "mine"))
    assert parse_place(f"gpu:{file}").chip == ""
    file.write_text(h100.target_config.replace("device_memory_size", "# size"))
    assert parse_place(f"gpu:{file}").memory_nbytes is None


@pytest.mark.parametrize(
    ("cut", "what"),
    [
        ("gpu_device_info", "it has no gpu_device_info"),
        ("CUDA", 'its platform_name is not "CUDA"'),
        ("cuda_compute_capability", "it has no cuda_compute_capability"),
    ],
)
def test_a_file_that_describes_no_gpu(tmp_path, cut, what):
    file = tmp_path / "other.txtpb"
    file.write_text(parse_place("gpu:h100").target_config.replace(cut, "other"))
    with pytest.raises(InputsError, match=what):
        parse_place(f"gpu:{file}")


NEW, OLD = "XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"


@pytest.fixture
def no_fraction(monkeypatch):
    for name in (NEW, OLD):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("no_fraction")
@pytest.mark.parametrize("name", [NEW, OLD])
def test_the_memory_of_a_gpu_is_what_jax_takes(name, monkeypatch):
    whole = 84942979072
    assert parse_place("gpu:h100").memory_nbytes == whole * 3 // 4
    monkeypatch.setenv(name, ".5")
    assert parse_place("gpu:h100").memory_nbytes == whole // 2
    assert parse_place("gpu:h100", memory_fraction=1.0).memory_nbytes == whole
    less = parse_place("gpu:h100", margin_nbytes=2**30)
    assert less.memory_nbytes == whole // 2 - 2**30
    assert parse_place("gpu:h100", margin_nbytes=2**40).memory_nbytes == 0
    # JAX takes all of a TPU.
    assert parse_place("tpu:v5e", margin_nbytes=2**30).memory_nbytes == 2**30 * 59 // 4
    assert parse_place("cpu", margin_nbytes=2**30).memory_nbytes is None


@pytest.mark.usefixtures("no_fraction")
@pytest.mark.parametrize("name", [NEW, OLD])
@pytest.mark.parametrize("text", ["half", "0", "-1", "1.01", "nan", "inf", "90%"])
def test_a_memory_fraction_of_the_environment_that_is_none(name, text, monkeypatch):
    monkeypatch.setenv(name, text)
    with pytest.raises(InputsError) as caught:
        parse_place("gpu:h100")
    assert str(caught.value) == (
        f"{name}={text} is not a number above 0 and up to 1; write e.g. {name}=0.9"
    )
    assert parse_place("gpu:h100", memory_fraction=0.5).memory_nbytes == 84942979072 // 2
    assert parse_place("tpu:v5e").memory_nbytes == 2**26 * 252


@pytest.mark.usefixtures("no_fraction")
@pytest.mark.parametrize(("new", "old"), [(".5", ".5"), (".5", "0.9"), (".5", ""), ("", ".5")])
def test_both_names_of_the_memory_fraction_are_as_for_jax(new, old, monkeypatch):
    from jaxlib.xla_client import generate_pjrt_gpu_plugin_options

    monkeypatch.setenv(NEW, new)
    monkeypatch.setenv(OLD, old)
    try:
        fraction = generate_pjrt_gpu_plugin_options()["memory_fraction"]
    except ValueError:
        with pytest.raises(
            InputsError, match=f"^{NEW} and {OLD} are both set, .* unset the second"
        ):
            parse_place("gpu:h100")
    else:
        assert parse_place("gpu:h100").memory_nbytes == int(84942979072 * fraction)


def test_each_gpu_has_a_name_and_a_description():
    names = [name for gpu in GPUS for name in (gpu.name, *gpu.aliases)]
    assert len(set(names)) == len(names)
    for gpu in GPUS:
        place = parse_place(f"gpu:{gpu.name}", memory_fraction=1)
        assert (place.chip, place.memory_nbytes) == (gpu.name, gpu.memory_nbytes)
        assert f"device_memory_size: {gpu.memory_nbytes}\n" in place.target_config
        assert 2**30 * 15 < gpu.memory_nbytes < 2**30 * 300


GPU_PACKAGES = {
    **{"jax": "0.10.2", "jaxlib": "0.10.2", "jax-cuda12-plugin": "0.10.2"},
    **{"jax-cuda12-pjrt": "0.10.2", "nvidia-cuda-nvcc-cu12": "12.9.86"},
}


def has(monkeypatch, packages):
    def version(package):
        if packages.get(package) is None:
            raise importlib.metadata.PackageNotFoundError(package)
        return packages[package]

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(places, "cuda_toolkit", lambda: packages.get("nvidia-cuda-nvcc-cu12"))


def test_without_libtpu_only_tpus_are_missing(monkeypatch):
    has(monkeypatch, GPU_PACKAGES)
    assert "pip install 'jaxresid[tpu]'" in why_unavailable(parse_place("tpu:v5e:2x4"))
    for text in ("cpu", "gpu", "gpu:h100"):
        assert why_unavailable(parse_place(text)) is None


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"jax-cuda12-plugin": None}, "needs jax-cuda12-plugin, but no GPU; install it with: pip"),
        ({"nvidia-cuda-nvcc-cu12": None}, "pip install 'jaxresid[gpu]'"),
        (
            {"jax-cuda12-pjrt": "0.10.1"},
            "install: pip install jax-cuda12-plugin==0.10.2 jax-cuda12-pjrt==0.10.2",
        ),
        ({"jax": "0.8.3", "jax-cuda12-plugin": None}, "needs jax 0.9 or newer; this is 0.8.3"),
    ],
)
def test_what_a_gpu_that_is_not_there_lacks(changed, said, monkeypatch):
    has(monkeypatch, GPU_PACKAGES | changed)
    reason = why_unavailable(parse_place("gpu:h100"))
    assert said in reason
    assert "\n" not in reason
    assert why_unavailable(parse_place("gpu")) is None  # is asked of JAX


def test_a_build_of_ones_own_goes_with_the_plugin_of_its_version(monkeypatch):
    has(monkeypatch, GPU_PACKAGES | {"jaxlib": "0.10.2+selfbuilt"})
    assert why_unavailable(parse_place("gpu:h100")) is None


def test_places_need_no_jax():
    code = "import sys; from jaxresid.xla.places import *; parse_place('gpu:h100:8'); topologies()"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; print('jax' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "False"


ASK = """
from jax.experimental.topologies import get_topology_desc
from jaxresid.xla.places import topologies
for it in topologies():
    if it.devices <= 512:
        name = it.text.removeprefix("tpu:")
        found = get_topology_desc(platform="tpu", topology_name=name).devices
        assert len(found) == it.devices, (name, len(found))
print("all there")
"""


@pytest.mark.tpu
def test_libtpu_knows_the_listed_topologies():
    quiet = {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", ASK],
        check=False,
        capture_output=True,
        text=True,
        env=os.environ | quiet,
    )
    assert "all there" in done.stdout, done.stderr[-2000:]


@pytest.mark.parametrize("text", ["cpu", "tpu:v5e", "gpu"])
def test_a_memory_fraction_is_of_a_gpu_that_is_named(text):
    with pytest.raises(InputsError, match="a memory fraction is of a GPU that is named") as caught:
        parse_place(text, memory_fraction=0.5)
    assert ("set XLA_CLIENT_MEM_FRACTION" in str(caught.value)) == (text == "gpu")

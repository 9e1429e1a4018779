"""The places that a program can be compiled for, and how they are written."""

from __future__ import annotations

import importlib.util
import math
import os
import re
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal as OneOf

from jaxresid.base import regular_files
from jaxresid.base.errors import InputsError
from jaxresid.base.text.nearest import did_you_mean, nearest_first
from jaxresid.base.text.short_repr import Shown
from jaxresid.xla.gpus import GPUS, Gpu
from jaxresid.xla.tpus import GENERATIONS, OTHER_NAMES, by_other_name, nbytes_of_gib, topologies
from jaxresid.xla.versions import installed_version

TPU_EXTRA = "pip install 'jaxresid[tpu]'"
GPU_EXTRA = "pip install 'jaxresid[gpu]'"
# What compiles for NVIDIA's GPUs. Each release of the first two is for the jaxlib of its version;
# the third is CUDA's assembler, which jaxlib 0.12 tries kernels with before it assigns buffers.
_PLUGIN = ("jax-cuda12-plugin", "jax-cuda12-pjrt")
_ASSEMBLER = "nvidia-cuda-nvcc-cu12"
# The first jax whose CUDA plugin compiles for what is only described.
_GPU_SINCE = (0, 9)
# What JAX takes of a GPU's memory unless it is told otherwise.
_MEMORY_FRACTION = 0.75
# The name that JAX documents and the one it had before: jaxlib 0.7.0 to 0.12.0.1 read both.
_FRACTION_VARIABLE = "XLA_CLIENT_MEM_FRACTION"
_OLD_FRACTION_VARIABLE = "XLA_PYTHON_CLIENT_MEM_FRACTION"
_GPUS_OF_A_HOST = 8
# Hosts, and GPUs of each.
_COUNT = re.compile(r"(?:([1-9]\d{0,5})x)?([1-9]\d{0,3})")
_FILES = (".txtpb", ".pbtxt", ".textproto", ".textpb")


@dataclass(frozen=True, slots=True, repr=False)
class Place(Shown):
    """A place that a program is compiled for.

    Attributes:
      text: as users write it, `cpu`, `gpu:h100:8`, `tpu:v5e:2x4`; `gpu` is the GPUs of this
        machine.
      chip: the name of the chip, `h100`, `v5e`; '' for a CPU and where it is not known.
      topology: as the compiler names it, `v5e:2x4` of libtpu, `1x1x8` (slices x hosts x GPUs of a
        host) of a GPU's; '' for devices of this machine, and where `devices` is None.
      devices: how many there are; None: as many as the program is split over.
      target_config: the text proto that XLA compiles for a GPU from that is not there.
      memory_nbytes: the bytes that a program can have of one device: of a TPU by libtpu's account,
        of a GPU what JAX takes; None where it is not known before something is compiled.
      margin_nbytes: bytes of each device to leave free; `memory_nbytes` is without them.
      origin: who chose it, in words.
    """

    text: str
    platform: OneOf["cpu", "cuda", "tpu"]
    chip: str = ""
    topology: str = ""
    devices: int | None = None
    target_config: str = field(default="", repr=False)
    memory_nbytes: int | None = field(default=None, compare=False)
    margin_nbytes: int = field(default=0, compare=False)
    origin: str = field(default="", compare=False)

    @property
    def kind(self) -> OneOf["gpu", "tpu", "cpu"]:
        """What the text begins with."""
        return "gpu" if self.platform == "cuda" else self.platform

    @property
    def is_here(self) -> bool:
        """Whether its devices are this machine's."""
        return self.platform == "cpu" or self.text == "gpu"


_LISTED = "`jaxresid compile --list-places` lists them all"


def listed() -> tuple[tuple[str, int, int], ...]:
    """Return the known places with their devices and what a program can have of each, in bytes."""
    gpus = (parse_place(f"gpu:{gpu.name}") for gpu in GPUS)
    return (
        *((place.text, 1, place.memory_nbytes or 0) for place in gpus),
        *((it.text, it.devices, it.memory_nbytes) for it in topologies()),
    )


def parse_place(
    text: str, *, memory_fraction: float | None = None, margin_nbytes: int = 0
) -> Place:
    """Parse a place: `cpu`, `gpu:h100`, `gpu:h100:2x8`, `gpu:FILE`, `tpu:v5e`, `tpu:v5e:2x4`.

    Args:
      text: the place as users write it.
      memory_fraction: the part of a GPU's memory that a program can have; None: what
        XLA_CLIENT_MEM_FRACTION or XLA_PYTHON_CLIENT_MEM_FRACTION says, else 0.75, as in JAX.
      margin_nbytes: bytes of each device to leave free.

    Raises:
      InputsError: the text is not a place, or those variables are set to what JAX refuses; the
        message tells what to write instead.
    """
    place = _parsed(text)
    if memory_fraction is not None and not place.target_config:
        instead = f"; set {_FRACTION_VARIABLE}" if place.platform == "cuda" else ""
        raise InputsError(
            f"a memory fraction is of a GPU that is named, such as gpu:h100, not of {place.text}"
            f"{instead}"
        )
    place = replace(place, margin_nbytes=margin_nbytes)
    nbytes = place.memory_nbytes
    if nbytes is None:
        return place
    if place.platform == "cuda":
        nbytes = int(nbytes * (_fraction() if memory_fraction is None else memory_fraction))
    return replace(place, memory_nbytes=max(nbytes - margin_nbytes, 0))


def for_devices(place: Place, count: int) -> Place:
    """Return a place with its number of devices.

    One that has none gets as many as a program is split over, GPUs on hosts of eight.

    Raises:
      InputsError: no known topology has that many.
    """
    if place.devices is not None or place.is_here:
        return place
    if place.platform == "cuda":
        hosts = count // _GPUS_OF_A_HOST if count % _GPUS_OF_A_HOST == 0 else 1
        per_host = count // max(hosts, 1)
        shape = f":{hosts}x{per_host}" if hosts > 1 else f":{per_host}" if per_host > 1 else ""
        return replace(
            place, text=place.text + shape, topology=f"1x{hosts}x{per_host}", devices=count
        )
    for it in topologies():
        if it.generation == place.chip and it.devices >= count:
            text = it.text if count > 1 else place.text
            return replace(
                place, text=text, topology=f"{place.chip}:{it.shape}", devices=it.devices
            )
    raise InputsError(f"no known topology of {place.text} has {count} devices; {_LISTED}")


def memory_of(place: Place) -> int:
    """Return the bytes that a program can have of one device of a place.

    Raises:
      InputsError: they are not known before something is compiled.
    """
    if place.memory_nbytes is None:
        raise InputsError(
            f"how much memory {place.text} has is not known here; say what the peak has to fit"
            " into, such as --budget 12GiB"
        )
    return place.memory_nbytes


def why_unavailable(place: Place) -> str | None:
    """Return why nothing can be compiled for a place here; None where no reason is known.

    Only what is known before jax is imported counts.
    """
    if place.platform == "tpu" and importlib.util.find_spec("libtpu") is None:
        return f"compiling for a TPU needs libtpu, but no TPU; install it with: {TPU_EXTRA}"
    return _why_no_gpu() if place.target_config else None


def cuda_toolkit() -> str | None:
    """Return the folder of the wheel with CUDA's assembler; None where it is not installed."""
    try:
        package = importlib.util.find_spec("nvidia.cuda_nvcc")
    except ModuleNotFoundError:
        return None
    folders = () if package is None else package.submodule_search_locations or ()
    return next((f for f in folders if os.path.isfile(os.path.join(f, "bin", "ptxas"))), None)


def _why_no_gpu() -> str | None:
    jax, jaxlib = _release("jax"), _release("jaxlib")
    if jax is not None and _numbers(jax) < _GPU_SINCE:
        since = ".".join(map(str, _GPU_SINCE))
        return f"compiling for a GPU that is not there needs jax {since} or newer; this is {jax}"
    versions = {package: _release(package) for package in _PLUGIN}
    missing = [package for package, version in versions.items() if version is None]
    missing += [_ASSEMBLER] * (cuda_toolkit() is None)
    if missing:
        what = " and ".join(missing)
        return f"compiling for a GPU needs {what}, but no GPU; install it with: {GPU_EXTRA}"
    if any(versions[package] != jaxlib for package in _PLUGIN):
        others = ", ".join(f"{package} {versions[package]}" for package in _PLUGIN)
        pinned = " ".join(f"{package}=={jaxlib}" for package in _PLUGIN)
        return f"{others} are not those of jaxlib {jaxlib}; install: pip install {pinned}"
    return None


def _release(package: str) -> str | None:
    version = installed_version(package)
    return None if version is None else version.partition("+")[0]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", version)[:2])


def _parsed(text: str) -> Place:
    word = text.strip()
    kind, colon, rest = word.partition(":")
    kind = kind.lower()
    if kind == "cpu" and not colon:
        return Place("cpu", "cpu")
    if kind in ("gpu", "cuda"):
        return _gpu(text, rest) if rest else Place("gpu", "cuda")
    word, rest = word.lower(), rest.lower()
    if kind == "tpu":
        return _tpu(text, rest)
    name = kind.partition("-")[0]
    if name in GENERATIONS or name in OTHER_NAMES:
        raise InputsError(f"{text!r} is not a place; write tpu:{by_other_name(word)}")
    gpu = _gpu_named(kind)
    if gpu is not None:
        count = f":{rest}" if _COUNT.fullmatch(rest) else ""
        raise InputsError(f"{text!r} is not a place; write gpu:{gpu.name}{count}")
    near = did_you_mean(word, [*_names(), *(it.text for it in topologies())]) if word else ""
    raise InputsError(
        f"{text!r} is not a place; write cpu, gpu:NAME, such as gpu:h100 or gpu:h100:8, or"
        f" tpu:NAME, such as tpu:v5e or tpu:v5e:2x4{near} (known:"
        f" {', '.join(nearest_first(word, _names()))})"
    )


def _gpu(text: str, rest: str) -> Place:
    name, _, count = rest.rpartition(":")
    if not name or (_is_file(rest) and not _COUNT.fullmatch(count)):
        name, count = rest, ""
    config = _target_config(name) if _is_file(name) else ""
    gpu = _gpu_described(config) if config else _gpu_named(name.lower())
    if gpu is None:
        names = nearest_first(name, (gpu_known.name for gpu_known in GPUS))
        raise InputsError(
            f"{text!r}: unknown GPU {name!r}{did_you_mean(name, names)} (known:"
            f" {', '.join(names)}); another one by gpu:FILE, where FILE is XLA's description of it"
        )
    written = f"gpu:{name if config else gpu.name}"
    place = Place(
        written,
        "cuda",
        gpu.name,
        target_config=gpu.target_config,
        memory_nbytes=gpu.memory_nbytes,
    )
    if not count:
        return place
    shape = _COUNT.fullmatch(count)
    if shape is None:
        raise InputsError(
            f"{text!r}: {count!r} is not a number of GPUs; write {written}:8, or {written}:2x8 for"
            " two hosts of eight"
        )
    hosts, per_host = int(shape[1] or 1), int(shape[2])
    return replace(
        place, text=f"{written}:{count}", topology=f"1x{hosts}x{per_host}", devices=hosts * per_host
    )


def _gpu_named(name: str) -> Gpu | None:
    return next((gpu for gpu in GPUS if name in (gpu.name, *gpu.aliases)), None)


def _is_file(name: str) -> bool:
    return "/" in name or os.sep in name or name.endswith(_FILES) or os.path.isfile(name)


def _target_config(file: str) -> str:
    try:
        text = regular_files.read_limited(Path(file)).decode("utf-8")
    except (OSError, UnicodeDecodeError) as e:
        reason = e.strerror if isinstance(e, OSError) else "it is not text"
        raise InputsError(f"cannot read {file}: {reason or type(e).__name__}") from e
    if not re.search(r"^\s*gpu_device_info\s*\{", text, re.MULTILINE):
        what = "it has no gpu_device_info"
    elif not re.search(r'^\s*platform_name:\s*"CUDA"', text, re.MULTILINE):
        what = 'its platform_name is not "CUDA"'
    elif "cuda_compute_capability" not in text:
        what = "it has no cuda_compute_capability"
    else:
        return text
    raise InputsError(
        f"{file} does not describe a GPU: {what}; the compiler takes a GpuTargetConfigProto as"
        " text, as XLA keeps them under xla/backends/gpu/target_config/specs"
    )


def _gpu_described(config: str) -> Gpu:
    size = re.search(r"^\s*device_memory_size:\s*(\d+)", config, re.MULTILINE)
    title = re.search(r'^\s*device_description_str:\s*"([^"\n]*)"', config, re.MULTILINE)
    gpu = title and next((gpu for gpu in GPUS if title[0] in gpu.target_config), None)
    return Gpu(
        gpu.name if gpu else "",
        title[1] if title else "",
        int(size[1]) if size else None,
        config,
    )


def _fraction() -> float:
    texts = {name: os.environ.get(name) for name in (_FRACTION_VARIABLE, _OLD_FRACTION_VARIABLE)}
    if all(texts.values()):
        raise InputsError(
            f"{_FRACTION_VARIABLE} and {_OLD_FRACTION_VARIABLE} are both set, which JAX refuses;"
            " unset the second, which is deprecated"
        )
    for name, text in texts.items():
        if not text:
            continue
        fraction = math.nan
        with suppress(ValueError):
            fraction = float(text)
        if not 0 < fraction <= 1:
            raise InputsError(
                f"{name}={text} is not a number above 0 and up to 1; write e.g. {name}=0.9"
            )
        return fraction
    return _MEMORY_FRACTION


def _tpu(text: str, topology: str) -> Place:
    name, _, shape = topology.partition(":")
    generation = GENERATIONS.get(name)
    if generation is None:
        raise InputsError(_not_a_tpu(text, name, shape))
    nbytes = nbytes_of_gib(generation.memory_gib)
    if not shape:
        return Place(f"tpu:{name}", "tpu", name, memory_nbytes=nbytes)
    axes = [int(n) for n in shape.split("x")] if re.fullmatch(r"\d{1,4}(x\d{1,4})+", shape) else []
    shapes = generation.shapes
    # libtpu takes 2x2 for 2x2x1 and the other way round; it divides by an axis of 0 and dies. A
    # host has one chip or two along each of the first two axes (0.0.52: so in 656 shapes).
    is_whole_hosts = all(n == 1 or (n and n % 2 == 0) for n in axes[:2])
    is_flat = len(axes) < 3 or generation.axes == 3 or axes[2] == 1
    if not axes or 0 in axes or len(axes) > 3 or not is_whole_hosts or not is_flat:
        raise InputsError(
            f"{text!r}: {name} has no topology {shape!r}{did_you_mean(shape, shapes)} (known:"
            f" {', '.join(nearest_first(shape, shapes))})"
        )
    devices = math.prod(axes) * generation.devices_per_chip
    return Place(
        f"tpu:{name}:{shape}", "tpu", name, f"{name}:{shape}", devices, memory_nbytes=nbytes
    )


def _not_a_tpu(text: str, name: str, shape: str) -> str:
    names = ", ".join(nearest_first(name, GENERATIONS))
    if not name:
        return f"{text!r} does not say which TPU: write tpu:v5e (known: {names})"
    bare = name.partition("-")[0]
    if bare in GENERATIONS or bare in OTHER_NAMES:
        return f"{text!r}: write tpu:{by_other_name(f'{name}:{shape}')}; {_LISTED}"
    near = did_you_mean(name, GENERATIONS)
    return f"{text!r}: unknown TPU {name!r}{near} (known: {names})"


def _names() -> list[str]:
    return ["cpu", *(f"gpu:{gpu.name}" for gpu in GPUS), *(f"tpu:{name}" for name in GENERATIONS)]

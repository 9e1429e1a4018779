"""The places that a program can be compiled for, and how they are written."""

from __future__ import annotations

import importlib.metadata
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
      platform: the platform that programs are lowered for, `cpu`, `cuda`, `tpu`.
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


@dataclass(frozen=True, slots=True)
class Topology:
    """TPU chips that libtpu compiles for.

    Attributes:
      generation: the generation of the chips, `v5e`.
      shape: the number of chips along each axis, `2x4`.
      devices: the number of what JAX calls devices; a chip is one or two.
      memory_nbytes: the bytes that a program can have of one device, by libtpu 0.0.52's account,
        which has two decimals of a GiB.
    """

    generation: str
    shape: str
    devices: int
    memory_nbytes: int

    @property
    def text(self) -> str:
        """The topology as users write it, `tpu:v5e:2x4`."""
        return f"tpu:{self.generation}:{self.shape}"


@dataclass(frozen=True, slots=True)
class _Generation:
    devices_per_chip: int
    axes: int
    memory_gib: float
    shapes: tuple[str, ...]


_SQUARE = ("1x1", "2x2", "4x4", "4x8", "8x8", "8x16", "16x16")
_LITE = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_CUBE = ("1x1x1", "2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8")

# Each of these was asked of libtpu 0.0.52: the devices of each shape, the memory by what it says
# of a program that is too big. The shapes are those that clouds rent; others are libtpu's to judge.
_GENERATIONS = {
    "v2": _Generation(2, 2, 7.48, _SQUARE),
    "v3": _Generation(2, 2, 15.48, (*_SQUARE, "16x32", "32x32")),
    "v4": _Generation(2, 3, 15.25, (*_CUBE, "8x8x16", "8x16x16")),
    "v5e": _Generation(1, 2, 15.75, _LITE),
    "v5p": _Generation(1, 3, 95.73, (*_CUBE, "8x8x16", "8x16x16")),
    "v6e": _Generation(1, 2, 31.24, _LITE),
    "tpu7x": _Generation(2, 3, 94.74, (*_CUBE, "8x16x16")),
}
_OTHER_NAMES = {
    "v5litepod": "v5e",
    "v5lite": "v5e",
    "v5": "v5p",
    "v6": "v6e",
    "trillium": "v6e",
    "v7": "tpu7x",
    "v7x": "tpu7x",
    "7x": "tpu7x",
    "tpu7": "tpu7x",
    "ironwood": "tpu7x",
}
_LISTED = "`jaxresid compile --list-places` lists them all"


def topologies() -> tuple[Topology, ...]:
    """Return the TPU topologies that are known to compile; libtpu knows more shapes."""
    return tuple(
        Topology(name, shape, _chips(shape) * it.devices_per_chip, _nbytes(it.memory_gib))
        for name, it in _GENERATIONS.items()
        for shape in it.shapes
    )


def shapes_of(generation: str) -> tuple[str, ...]:
    """Return the known shapes of topologies of a TPU, `2x4`; none of what is no TPU."""
    found = _GENERATIONS.get(generation)
    return () if found is None else found.shapes


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
    found = _parsed(text)
    if memory_fraction is not None and not found.target_config:
        instead = f"; set {_FRACTION_VARIABLE}" if found.platform == "cuda" else ""
        raise InputsError(
            f"a memory fraction is of a GPU that is named, such as gpu:h100, not of {found.text}"
            f"{instead}"
        )
    found = replace(found, margin_nbytes=margin_nbytes)
    nbytes = found.memory_nbytes
    if nbytes is None:
        return found
    if found.platform == "cuda":
        nbytes = int(nbytes * (_fraction() if memory_fraction is None else memory_fraction))
    return replace(found, memory_nbytes=max(nbytes - margin_nbytes, 0))


def for_devices(place: Place, count: int) -> Place:
    """Return a place with its number of devices.

    One that has none gets as many as a program is split over, GPUs on hosts of eight.

    Args:
      place: the place.
      count: how many devices the program is split over.

    Raises:
      InputsError: no known topology has that many.
    """
    if place.devices is not None or place.is_here:
        return place
    if place.platform == "cuda":
        hosts = count // _GPUS_OF_A_HOST if count % _GPUS_OF_A_HOST == 0 else 1
        each = count // max(hosts, 1)
        shape = f":{hosts}x{each}" if hosts > 1 else f":{each}" if each > 1 else ""
        return replace(place, text=place.text + shape, topology=f"1x{hosts}x{each}", devices=count)
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
        found = importlib.util.find_spec("nvidia.cuda_nvcc")
    except ModuleNotFoundError:
        return None
    folders = () if found is None else found.submodule_search_locations or ()
    return next((f for f in folders if os.path.isfile(os.path.join(f, "bin", "ptxas"))), None)


def _why_no_gpu() -> str | None:
    """Return why nothing can be compiled for a GPU that is not there."""
    jax, jaxlib = _installed("jax"), _installed("jaxlib")
    if jax is not None and _numbers(jax) < _GPU_SINCE:
        since = ".".join(map(str, _GPU_SINCE))
        return f"compiling for a GPU that is not there needs jax {since} or newer; this is {jax}"
    found = {package: _installed(package) for package in _PLUGIN}
    missing = [package for package, version in found.items() if version is None]
    missing += [_ASSEMBLER] * (cuda_toolkit() is None)
    if missing:
        what = " and ".join(missing)
        return f"compiling for a GPU needs {what}, but no GPU; install it with: {GPU_EXTRA}"
    if any(found[package] != jaxlib for package in _PLUGIN):
        others = ", ".join(f"{package} {found[package]}" for package in _PLUGIN)
        pinned = " ".join(f"{package}=={jaxlib}" for package in _PLUGIN)
        return f"{others} are not those of jaxlib {jaxlib}; install: pip install {pinned}"
    return None


def _installed(package: str) -> str | None:
    try:
        return importlib.metadata.version(package).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return None


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
    if name in _GENERATIONS or name in _OTHER_NAMES:
        raise InputsError(f"{text!r} is not a place; write tpu:{_by_other_name(word)}")
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
    """Return the place of `gpu:` and a name or a file, with or without how many there are."""
    name, _, count = rest.rpartition(":")
    if not name or (_is_file(rest) and not _COUNT.fullmatch(count)):
        name, count = rest, ""
    config = _target_config(name) if _is_file(name) else ""
    gpu = _gpu_described(config) if config else _gpu_named(name.lower())
    if gpu is None:
        names = nearest_first(name, (known.name for known in GPUS))
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
    hosts, each = int(shape[1] or 1), int(shape[2])
    return replace(
        place, text=f"{written}:{count}", topology=f"1x{hosts}x{each}", devices=hosts * each
    )


def _gpu_named(name: str) -> Gpu | None:
    return next((gpu for gpu in GPUS if name in (gpu.name, *gpu.aliases)), None)


def _is_file(name: str) -> bool:
    return "/" in name or os.sep in name or name.endswith(_FILES) or os.path.isfile(name)


def _target_config(file: str) -> str:
    """Return the text of a file that describes a GPU.

    Raises:
      InputsError: it cannot be read, or describes none that XLA's CUDA compiler knows.
    """
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
    """Return the GPU that a target config describes."""
    size = re.search(r"^\s*device_memory_size:\s*(\d+)", config, re.MULTILINE)
    title = re.search(r'^\s*device_description_str:\s*"([^"\n]*)"', config, re.MULTILINE)
    known = title and next((gpu for gpu in GPUS if title[0] in gpu.target_config), None)
    return Gpu(
        known.name if known else "",
        title[1] if title else "",
        int(size[1]) if size else None,
        config,
    )


def _fraction() -> float:
    """Return the part of a GPU's memory that JAX takes.

    Raises:
      InputsError: both variables are set, or the one that is has no such value.
    """
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
    found = _GENERATIONS.get(name)
    if found is None:
        raise InputsError(_not_a_tpu(text, name, shape))
    nbytes = _nbytes(found.memory_gib)
    if not shape:
        return Place(f"tpu:{name}", "tpu", name, memory_nbytes=nbytes)
    axes = [int(n) for n in shape.split("x")] if re.fullmatch(r"\d{1,4}(x\d{1,4})+", shape) else []
    # libtpu takes 2x2 for 2x2x1 and the other way round; it divides by an axis of 0 and dies. A
    # host has one chip or two along each of the first two axes (0.0.52: so in 656 shapes).
    is_whole_hosts = all(n == 1 or (n and n % 2 == 0) for n in axes[:2])
    is_flat = len(axes) < 3 or found.axes == 3 or axes[2] == 1
    if not axes or 0 in axes or len(axes) > 3 or not is_whole_hosts or not is_flat:
        raise InputsError(
            f"{text!r}: {name} has no topology {shape!r}{did_you_mean(shape, found.shapes)} (known:"
            f" {', '.join(nearest_first(shape, found.shapes))})"
        )
    devices = math.prod(axes) * found.devices_per_chip
    return Place(
        f"tpu:{name}:{shape}", "tpu", name, f"{name}:{shape}", devices, memory_nbytes=nbytes
    )


def _not_a_tpu(text: str, name: str, shape: str) -> str:
    known = ", ".join(nearest_first(name, _GENERATIONS))
    if not name:
        return f"{text!r} does not say which TPU: write tpu:v5e (known: {known})"
    bare = name.partition("-")[0]
    if bare in _GENERATIONS or bare in _OTHER_NAMES:
        return f"{text!r}: write tpu:{_by_other_name(f'{name}:{shape}')}; {_LISTED}"
    near = did_you_mean(name, _GENERATIONS)
    return f"{text!r}: unknown TPU {name!r}{near} (known: {known})"


def _by_other_name(topology: str) -> str:
    """Return the topology that one in other words stands for: `v5litepod-8` is `v5e:2x4`."""
    name, _, shape = topology.partition(":")
    name, _, count = name.partition("-")
    name = _OTHER_NAMES.get(name, name)
    found = _GENERATIONS[name]
    if count.isdecimal():
        # v5e and v6e are rented by the chip, the others by the core, of which a chip has two.
        chips = int(count) if found.axes == 2 and found.devices_per_chip == 1 else int(count) // 2
        shape = next((s for s in found.shapes if _chips(s) == chips), shape)
    return f"{name}:{shape}" if shape else name


def _names() -> list[str]:
    """Return the places, each without a number of devices."""
    return ["cpu", *(f"gpu:{gpu.name}" for gpu in GPUS), *(f"tpu:{name}" for name in _GENERATIONS)]


def _chips(shape: str) -> int:
    return math.prod(int(n) for n in shape.split("x"))


def _nbytes(gib: float) -> int:
    return round(gib * 2**30)

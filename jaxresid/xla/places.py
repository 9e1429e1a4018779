"""The places that a program can be compiled for, and how they are written."""

from __future__ import annotations

import importlib.util
import math
import re
from dataclasses import dataclass
from typing import Literal as OneOf

from jaxresid.errors import InputsError
from jaxresid.nearest import did_you_mean

TPU_EXTRA = "pip install 'jaxresid[tpu]'"


@dataclass(frozen=True, slots=True)
class Place:
    """A place that a program is compiled for.

    Attributes:
      text: as users write it, `cpu`, `gpu`, `tpu:v5e:2x4`.
      platform: the platform that programs are lowered for, `cpu`, `cuda`, `tpu`.
      topology: as libtpu names it, `v5e:2x4`; '' for devices of this machine.
      devices: how many a topology has; None: as many as the program is split over (`cpu`), or as
        the machine has (`gpu`).
    """

    text: str
    platform: OneOf["cpu", "cuda", "tpu"]
    topology: str = ""
    devices: int | None = None


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
_LISTED = "--list-topologies lists them"


def topologies() -> tuple[Topology, ...]:
    """Return the TPU topologies that are known to compile; libtpu knows more shapes."""
    return tuple(
        Topology(name, shape, _chips(shape) * it.devices_per_chip, _nbytes(it.memory_gib))
        for name, it in _GENERATIONS.items()
        for shape in it.shapes
    )


def place(text: str) -> Place:
    """Parse a place: `cpu`, `gpu`, `tpu:v5e:2x4`.

    Raises:
      InputsError: the text is not a place; the message tells what to write instead.
    """
    word = text.strip().lower()
    if word == "cpu":
        return Place("cpu", "cpu")
    if word in ("gpu", "cuda"):
        return Place("gpu", "cuda")
    kind, _, topology = word.partition(":")
    if kind != "tpu":
        name = kind.partition("-")[0]
        if name in _GENERATIONS or name in _OTHER_NAMES:
            raise InputsError(
                f"{text!r} is not a platform to compile for; write tpu:{_meant(word)}"
            )
        raise InputsError(
            f"{text!r} is not a platform to compile for; write cpu, gpu or tpu:GENERATION:SHAPE,"
            f" such as tpu:v5e:2x4{did_you_mean(word, ['cpu', 'gpu', 'cuda', *_texts()])}"
        )
    return _tpu(text, topology)


def unavailable(place: Place) -> str | None:
    """Return why nothing can be compiled for a place here; None where no reason is known.

    Only what is known before jax is imported counts.
    """
    if place.platform == "tpu" and importlib.util.find_spec("libtpu") is None:
        return f"compiling for a TPU needs libtpu, but no TPU; install it with: {TPU_EXTRA}"
    return None


def _tpu(text: str, topology: str) -> Place:
    name, _, shape = topology.partition(":")
    found = _GENERATIONS.get(name)
    if found is None or not shape:
        raise InputsError(_not_a_topology(text, name, shape))
    axes = [int(n) for n in shape.split("x")] if re.fullmatch(r"\d{1,4}(x\d{1,4})+", shape) else []
    # libtpu takes 2x2 for 2x2x1 and the other way round; it divides by an axis of 0 and dies.
    if not axes or 0 in axes or len(axes) > 3 or (len(axes) == 3 > found.axes and axes[2] != 1):
        wanted = "two" if found.axes == 2 else "three"
        raise InputsError(
            f"{text!r}: {shape!r} is not a shape of {name}, which has {wanted} axes of chips, such"
            f" as tpu:{name}:{found.shapes[2]}{did_you_mean(shape, found.shapes)}; {_LISTED}"
        )
    devices = math.prod(axes) * found.devices_per_chip
    return Place(f"tpu:{name}:{shape}", "tpu", f"{name}:{shape}", devices)


def _not_a_topology(text: str, name: str, shape: str) -> str:
    if not name:
        return f"{text!r} does not say which TPU: write tpu:v5e:2x4; {_LISTED}"
    if name in _GENERATIONS:
        return (
            f"{text!r} does not say how many chips: write tpu:{name}:{_GENERATIONS[name].shapes[1]}"
            f"; {_LISTED}"
        )
    bare = name.partition("-")[0]
    if bare in _GENERATIONS or bare in _OTHER_NAMES:
        return (
            f"{text!r}: write a topology with its shape: tpu:{_meant(f'{name}:{shape}')}; {_LISTED}"
        )
    known = ", ".join(_GENERATIONS)
    near = did_you_mean(name, _GENERATIONS)
    return f"{text!r}: unknown TPU generation {name!r}{near} (known: {known}); {_LISTED}"


def _meant(topology: str) -> str:
    """Return the topology that one in other words stands for: `v5litepod-8` is `v5e:2x4`."""
    name, _, shape = topology.partition(":")
    name, _, count = name.partition("-")
    name = _OTHER_NAMES.get(name, name)
    found = _GENERATIONS[name]
    if count.isdecimal():
        # v5e and v6e are rented by the chip, the others by the core, of which a chip has two.
        chips = int(count) if found.axes == 2 and found.devices_per_chip == 1 else int(count) // 2
        shape = next((s for s in found.shapes if _chips(s) == chips), shape)
    return f"{name}:{shape or found.shapes[1]}"


def _texts() -> list[str]:
    return [topology.text for topology in topologies()]


def _chips(shape: str) -> int:
    return math.prod(int(n) for n in shape.split("x"))


def _nbytes(gib: float) -> int:
    return round(gib * 2**30)

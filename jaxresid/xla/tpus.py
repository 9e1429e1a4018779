"""Hold the TPUs that programs are compiled for, with the topologies that libtpu has of them."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Topology:
    """TPU chips that libtpu compiles for.

    Attributes:
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
GENERATIONS = {
    "v2": _Generation(2, 2, 7.48, _SQUARE),
    "v3": _Generation(2, 2, 15.48, (*_SQUARE, "16x32", "32x32")),
    "v4": _Generation(2, 3, 15.25, (*_CUBE, "8x8x16", "8x16x16")),
    "v5e": _Generation(1, 2, 15.75, _LITE),
    "v5p": _Generation(1, 3, 95.73, (*_CUBE, "8x8x16", "8x16x16")),
    "v6e": _Generation(1, 2, 31.24, _LITE),
    "tpu7x": _Generation(2, 3, 94.74, (*_CUBE, "8x16x16")),
}
OTHER_NAMES = {
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


def topologies() -> tuple[Topology, ...]:
    """Return the TPU topologies that are known to compile; libtpu knows more shapes."""
    return tuple(
        Topology(name, shape, _chips(shape) * it.devices_per_chip, nbytes_of_gib(it.memory_gib))
        for name, it in GENERATIONS.items()
        for shape in it.shapes
    )


def shapes_of(generation: str) -> tuple[str, ...]:
    """Return the known shapes of topologies of a TPU, `2x4`; none of what is no TPU."""
    tpu = GENERATIONS.get(generation)
    return () if tpu is None else tpu.shapes


def by_other_name(topology: str) -> str:
    """Return the topology that one in other words stands for: `v5litepod-8` is `v5e:2x4`."""
    name, _, shape = topology.partition(":")
    name, _, count = name.partition("-")
    name = OTHER_NAMES.get(name, name)
    generation = GENERATIONS[name]
    if count.isdecimal():
        # v5e and v6e are rented by the chip, the others by the core, of which a chip has two.
        chips = (
            int(count)
            if generation.axes == 2 and generation.devices_per_chip == 1
            else int(count) // 2
        )
        shape = next((s for s in generation.shapes if _chips(s) == chips), shape)
    return f"{name}:{shape}" if shape else name


def _chips(shape: str) -> int:
    return math.prod(int(n) for n in shape.split("x"))


def nbytes_of_gib(gib: float) -> int:
    return round(gib * 2**30)

"""The function that was inspected, the JAX that traced it, and the devices it is split over."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal as OneOf

from jaxresid.base.text.short_repr import Shown
from jaxresid.results.interval import IntervalBasis
from jaxresid.results.values import Location


@dataclass(frozen=True, slots=True, repr=False)
class Derivative(Shown):
    """A gradient that a function takes itself.

    Attributes:
      kind: what is taken, the outermost derivative first: `grad`, `jvp of grad`.
      location: the user's line that takes it; None where that is not known.
    """

    kind: str
    location: Location | None


@dataclass(frozen=True, slots=True, repr=False)
class Target(Shown):
    """The function that was inspected, and what was asked about it.

    Attributes:
      name: its name.
      differentiated: the argument leaves, as paths; of a program, those that it differentiates
        itself, where they can be told.
      mode: whether it is a loss, which is differentiated, or a program, which is taken as it is.
      gradients: the gradients that it takes itself.
      is_step: whether it is a training step: a program that updates by gradients of a loss of a
        batch what it differentiates; no sampler, and no solver.
      other_mode: the mode that would answer another question that makes sense; None where there is
        none.
    """

    name: str
    differentiated: tuple[str, ...]
    mode: OneOf["loss", "program"] = "loss"
    gradients: tuple[Derivative, ...] = ()
    is_step: bool = False
    other_mode: OneOf["loss", "program"] | None = None

    @property
    def has_gradient(self) -> bool:
        """Whether a gradient is part of what was traced: of a loss always."""
        return self.mode == "loss" or bool(self.gradients)


@dataclass(frozen=True, slots=True, repr=False)
class JaxInfo(Shown):
    """The JAX that traced, and those of its flags that change the answer.

    Attributes:
      version: the version of JAX.
      flags: the values of the flags, by name.
      compilers: the packages beside it that compile, and their versions: jaxlib, and libtpu where
        it is installed.
    """

    version: str
    flags: Mapping[str, bool]
    compilers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, repr=False)
class PlaceInfo(Shown):
    """The place that figures are for.

    Attributes:
      name: as users write it, `gpu:h100:8`.
      kind: what it begins with: `gpu`, `tpu` or `cpu`.
      origin: who chose it, in words: `as asked`, `the default, as JAX sees no accelerator here`.
      profile: the compiler whose rules the estimated peak follows, `tpu`; None where peaks are not
        estimated: a CPU's compiler is asked for them.
      memory_nbytes: the bytes that a program can have of one device; None where they are not known
        before something is compiled.
      intervals: what the intervals around estimates are measured with; None where there are none.
    """

    name: str
    kind: OneOf["gpu", "tpu", "cpu"]
    origin: str
    profile: str | None
    memory_nbytes: int | None = None
    intervals: IntervalBasis | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Mesh(Shown):
    """The devices that a program is split over. With one, every figure of bytes is one device's.

    Attributes:
      axes: names and sizes, `(("data", 4), ("model", 2))`.
      mode: `explicit`: the types say how each value is split; `auto`: the compiler decides.
      source: where the residuals' shards come from: `types`, exact; `compiler`, the output
        shardings of the compiled forward pass; `propagated`, worked out from the arguments'.
    """

    axes: tuple[tuple[str, int], ...]
    mode: OneOf["explicit", "auto"] = "auto"
    source: OneOf["types", "compiler", "propagated"] = "propagated"

    @property
    def size(self) -> int:
        """How many devices there are."""
        return math.prod(size for _, size in self.axes)

"""The most memory that a program takes at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal as OneOf

from jaxresid.base.text.short_repr import Shown
from jaxresid.results.interval import Interval, interval_between
from jaxresid.results.values import NOWHERE, Aval, Location, Source

# What a value is that is live at the peak: see `LiveValue.kind`.
LiveKind = OneOf[
    "argument",
    "parameters",
    "optimizer-state",
    "frozen-weights",
    "batch",
    "state",
    "constant",
    "output",
    "gradient",
    "residual",
    "temporary",
]
# The passes of a program: a gradient has no update, and what takes no gradient is one `program`.
Pass = OneOf["forward", "recompute", "backward", "update", "program"]
# Those of a curve, where what is recomputed is part of the backward pass.
CurvePass = OneOf["forward", "backward", "update", "program"]


@dataclass(frozen=True, slots=True, repr=False)
class LiveValue(Shown):
    """Equal values that are live at the peak.

    Attributes:
      kind: `argument`, `constant`, `output`, `gradient`, `residual`, `temporary`; in a training
        step the arguments are `parameters`, `optimizer-state`, `frozen-weights` or `batch`, and in
        a program without a gradient those that it returns updated, such as a cache, are `state`.
      nbytes: the bytes of all `count` of them.
      aval: the shape and dtype; None for what an op needs while it runs and has no name.
      count: how many there are.
      primitive: the primitive that makes it; None for an argument.
      path: an argument's path.
      source: where it is made.
      phase: the pass that makes it; None for an argument.
    """

    kind: LiveKind
    nbytes: int
    aval: Aval | None
    count: int = 1
    primitive: str | None = None
    path: str | None = None
    source: Source = NOWHERE
    phase: Pass | None = None

    @property
    def location(self) -> Location | None:
        """The user's line; None where none is known."""
        return self.source.location


@dataclass(frozen=True, slots=True, repr=False)
class PhaseSpan(Shown):
    """A stretch of a curve of bytes that is one pass.

    Attributes:
      phase: `forward`, `backward` (what is recomputed included) or, in a step, `update`;
        `program` where no gradient is taken.
      start: the index of its first point in the curve.
      stop: the index after its last.
      nbytes: the most bytes in it.
    """

    phase: CurvePass
    start: int
    stop: int
    nbytes: int


@dataclass(frozen=True, slots=True, repr=False)
class KeptBeyondPeak(Shown):
    """Why autodiff keeps more than the whole peak: what of it is not there at the peak.

    Attributes:
      kept_nbytes: the bytes of the computed residuals in device memory.
      at_peak_nbytes: the bytes of residuals that are live at the peak.
      duplicate_nbytes: the bytes of residuals that are the same value as another one.
      free_nbytes: the bytes of those that are made anew rather than stored.
      unread_nbytes: the bytes of those that nothing reads.
      other_nbytes: the bytes of the rest: computed where they are read, or freed before the peak.
    """

    kept_nbytes: int
    at_peak_nbytes: int
    duplicate_nbytes: int
    free_nbytes: int
    unread_nbytes: int
    other_nbytes: int


@dataclass(frozen=True, slots=True, repr=False)
class Peak(Shown):
    """An estimate of the most memory that the value and its gradients (or the step) take.

    Attributes:
      nbytes: arguments + outputs + temporaries - aliased, as XLA adds them up.
      profile: `tpu`: the kind of compiler whose fusion was assumed.
      source: where the op at the peak is.
      primitive: the primitive of the op at the peak.
      phase: the pass of the op at the peak: `forward`, `recompute`, `backward` or, in a step,
        `update`; `program` where no gradient is taken.
      arguments_nbytes: bytes of arguments.
      outputs_nbytes: bytes of outputs.
      temporaries_nbytes: bytes of temporaries.
      aliased_nbytes: bytes of outputs that take over the buffers of donated arguments.
      host_nbytes: the most bytes of host memory at once, not in `nbytes`.
      live: the values live at the peak, biggest first.
      breakdown: bytes by kind, the kinds of `live`; they add up to `nbytes`.
      curve: total bytes over the program, evenly spaced, at most 200 points.
      curve_at: index of the peak in `curve`.
      phases: the passes of `curve`, in order; they cover all of it, and one that is shorter than a
        fiftieth of it counts to its neighbour.
      uncounted: primitives whose memory is not known; they make the figure a lower bound.
      low_nbytes: the lower end of the interval that XLA's figure is in for nine of ten programs;
        None where too few were measured, or where the figure is a lower bound.
      high_nbytes: the upper end.
    """

    nbytes: int
    profile: str
    source: Source
    primitive: str | None
    phase: Pass
    arguments_nbytes: int
    outputs_nbytes: int
    temporaries_nbytes: int
    aliased_nbytes: int
    host_nbytes: int
    live: tuple[LiveValue, ...]
    breakdown: tuple[tuple[LiveKind, int], ...]
    curve: tuple[int, ...]
    curve_at: int
    uncounted: tuple[str, ...] = ()
    low_nbytes: int | None = None
    high_nbytes: int | None = None
    phases: tuple[PhaseSpan, ...] = ()

    @property
    def interval(self) -> Interval | None:
        """The interval around the estimate; None where none is known."""
        return interval_between(self.low_nbytes, self.high_nbytes)

    @property
    def location(self) -> Location | None:
        """The user's line at the peak; None where none is known."""
        return self.source.location

"""What a program may take, and whether it takes more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal as OneOf

from jaxresid.base.text.short_repr import Shown
from jaxresid.results.interval import Interval
from jaxresid.results.values import Source

Figure = OneOf["peak", "kept"]
Holding = OneOf["within", "may be over", "estimated over", "over"]


@dataclass(frozen=True, slots=True, repr=False)
class Limits(Shown):
    """What a program may take of one device.

    Attributes:
      peak_nbytes: the bytes that its peak may have; None for any.
      kept_nbytes: the bytes that its backward pass may keep in device memory, arguments aside; None
        for any.
      growth: the share of a baseline's peak by which the peak may be above it; None for any.
    """

    peak_nbytes: int | None = None
    kept_nbytes: int | None = None
    growth: float | None = None


@dataclass(frozen=True, slots=True, repr=False)
class BaselineLine(Shown):
    """A line of a baseline.

    Attributes:
      code: the file, the function and the code of the line, without its number.
      nbytes: the bytes that it keeps.
    """

    code: str
    nbytes: int


@dataclass(frozen=True, slots=True, repr=False)
class Baseline(Shown):
    """The figures of a program that its growth is held against.

    Attributes:
      place: the place that they are for.
      jax: the version of JAX that traced.
      kept_nbytes: the bytes that its backward pass kept in device memory, arguments aside.
      peak_nbytes: the peak, in bytes; None where it was not known.
      peak_by: whether the peak is an estimate, or XLA's; None without one.
      lines: the lines that kept most, largest first.
    """

    place: str
    jax: str
    kept_nbytes: int
    peak_nbytes: int | None = None
    peak_by: OneOf["estimate", "xla"] | None = None
    lines: tuple[BaselineLine, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class LineBytes(Shown):
    """The bytes of values that one line makes.

    Attributes:
      source: the line, and the module, of the largest of them.
      nbytes: their bytes.
      kinds: what they are, that of the most bytes first, as in `LiveValue`.
    """

    source: Source
    nbytes: int
    kinds: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class Held(Shown):
    """A figure of a program, held against its limit.

    Attributes:
      figure: which figure.
      nbytes: its bytes.
      limit_nbytes: the bytes that it may have.
      by: who says so: `estimate`, `xla`, or `trace`, whose bytes are exact.
      is_lower_bound: whether it may be more, as something was not counted.
      interval: the interval around an estimate; None where it is no estimate, or has none.
      lines: the lines that make most of it, largest first.
      arguments_nbytes: the bytes of a peak that are arguments.
    """

    figure: Figure
    nbytes: int
    limit_nbytes: int
    by: OneOf["estimate", "xla", "trace"]
    is_lower_bound: bool = False
    interval: Interval | None = None
    lines: tuple[LineBytes, ...] = ()
    arguments_nbytes: int = 0

    @property
    def holding(self) -> Holding:
        """Whether the figure is within its limit.

        An estimate is `over` where all of its interval is, `estimated over` where the estimate
        itself is, and `may be over` where only the upper end is or the estimate is a lower bound.
        """
        low = high = self.nbytes
        if self.by == "estimate" and self.interval is not None:
            low, high = self.interval.low_nbytes, self.interval.high_nbytes
        if low > self.limit_nbytes or (self.is_lower_bound and self.nbytes > self.limit_nbytes):
            return "over"
        if self.nbytes > self.limit_nbytes:
            return "estimated over"
        return "may be over" if high > self.limit_nbytes or self.is_lower_bound else "within"

    @property
    def fails(self) -> bool:
        """Whether the figure itself, estimate or not, is above its limit."""
        return self.nbytes > self.limit_nbytes

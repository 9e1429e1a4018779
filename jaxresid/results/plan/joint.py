"""The values of a plan's choice among batch sizes, microbatches and meshes."""

from __future__ import annotations

from dataclasses import dataclass

from jaxresid.base.text.short_repr import Shown
from jaxresid.results.interval import Answer, Interval, interval_between
from jaxresid.results.report.peak import LiveValue


@dataclass(frozen=True, slots=True, repr=False)
class Configuration(Shown):
    """What a program is planned for besides its checkpoints.

    Attributes:
      batch: the batch size, or another size that was asked for; None: the inputs as they are.
      microbatches: in how many microbatches the batch goes through, one after the other, their
        gradients added up in a scan; 1: all at once.
      mesh: the mesh that it is split over, `data=4,model=2`; None: that of the inputs.
      name: what the size is of: `batch`, `context`.
    """

    batch: int | None = None
    microbatches: int = 1
    mesh: str | None = None
    name: str = "batch"

    def __str__(self) -> str:
        parts = [] if self.batch is None else [f"{self.name} {self.batch}"]
        if self.microbatches > 1:
            parts.append(f"{'in ' * bool(parts)}{self.microbatches} microbatches")
        if self.mesh is not None:
            parts.append(f"on {self.mesh}")
        return " ".join(parts) or "the inputs as they are"


@dataclass(frozen=True, slots=True, repr=False)
class FrontRow(Shown):
    """One plan that no other beats in both its peak and what is minimised.

    Attributes:
      configuration: what it is for.
      checkpoints: what is done at each place, in words: `model.py:49 (layer): dots_saveable`.
      peak_nbytes: its peak: XLA's figure where XLA was asked, else an estimate.
      answer: whether that fits the budget.
      recompute_flops: FLOPs that the checkpoints add.
      recompute_fraction: these as a share of the FLOPs without any checkpoint.
      seconds: the estimated time of all microbatches together; None where no rates are known.
      items_per_s: items of the batch per second of that; None where either is not known.
      chosen: whether it is the plan.
      low_nbytes: the lower end of the interval around an estimate; None where there is none.
      high_nbytes: the upper end.
    """

    configuration: Configuration
    checkpoints: str
    peak_nbytes: int
    answer: Answer
    recompute_flops: int
    recompute_fraction: float
    seconds: float | None = None
    items_per_s: float | None = None
    chosen: bool = False
    low_nbytes: int | None = None
    high_nbytes: int | None = None

    @property
    def interval(self) -> Interval | None:
        """The interval around an estimated peak; None where none is known."""
        return interval_between(self.low_nbytes, self.high_nbytes)


@dataclass(frozen=True, slots=True, repr=False)
class Beaten(Shown):
    """A configuration that was not chosen.

    Attributes:
      configuration: the configuration.
      reason: why not: `3.1% slower`, `does not fit by the estimate: 17.20 GiB at least`.
      fits: whether the best of it is within the budget; False as well where it was not traced.
    """

    configuration: Configuration
    reason: str
    fits: bool


@dataclass(frozen=True, slots=True, repr=False)
class SizePeak(Shown):
    """The peak at one size.

    Attributes:
      size: the size.
      peak_nbytes: the peak: XLA's figure where XLA was asked, else an estimate.
      low_nbytes: the lower end of the interval around an estimate; None where there is none.
      high_nbytes: the upper end.
    """

    size: int
    peak_nbytes: int
    low_nbytes: int | None = None
    high_nbytes: int | None = None

    @property
    def interval(self) -> Interval | None:
        """The interval around an estimated peak; None where none is known."""
        return interval_between(self.low_nbytes, self.high_nbytes)


@dataclass(frozen=True, slots=True, repr=False)
class GrowingValue(Shown):
    """A value that is live at the peak and grows with the size.

    Attributes:
      value: the value, as it is at the larger of the two sizes; equal ones are one.
      nbytes: by how many bytes all of them grow from the one size to the other.
    """

    value: LiveValue
    nbytes: int


@dataclass(frozen=True, slots=True, repr=False)
class Growth(Shown):
    """How the estimated peak grows with the size, from the one that was chosen to the next.

    Attributes:
      low_size: the smaller of two sizes that were tried.
      high_size: the larger.
      nbytes: by how many bytes the peak grows from the one to the other.
      values: what is live at the peak and grows, what grows most first; less than a hundredth of
        all that grows is left out.
    """

    low_size: int
    high_size: int
    nbytes: int
    values: tuple[GrowingValue, ...] = ()

    @property
    def each_nbytes(self) -> float:
        """The bytes that the size takes for each 1 that it is larger."""
        return self.nbytes / (self.high_size - self.low_size)


@dataclass(frozen=True, slots=True, repr=False)
class Largest(Shown):
    """The search for the largest size that fits.

    Attributes:
      name: what the size is of: `batch`, `context`.
      size: the largest that is known to fit: by XLA's figure, by the whole range of an estimate,
        or, with checkpoints that are planned for it, by the estimate itself; None where none is.
      first: the smallest size that there was to choose from.
      last: the largest.
      count: how many there were.
      tried: how many of them were tried.
      next: the next larger one of those that were tried; None where there is none.
      possible: the largest that may fit by the range of its estimate, where that is larger; None
        where it is not, and where the sizes are not told apart by ranges.
      growth: how the peak grows with it; None where one size was tried, and where a program takes
        gradients.
    """

    name: str
    size: int | None
    first: int
    last: int
    count: int
    tried: int
    next: SizePeak | None = None
    possible: int | None = None
    growth: Growth | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Selection(Shown):
    """What a plan was chosen from.

    Attributes:
      configuration: what the plan is for.
      front: the plans of all configurations that no other beats in both peak and what is
        minimised, the lowest peak first.
      beaten: the other configurations, the best first.
      searched: of how many configurations all that may be best was searched.
      followed: of how many the best followed from that of another with equal microbatches.
      skipped: how many were not traced, as something smaller does not fit.
      to_set: what to set, or to write by hand, for the configuration.
      largest: the search for the largest size, where that was maximised; else None.
    """

    configuration: Configuration
    front: tuple[FrontRow, ...] = ()
    beaten: tuple[Beaten, ...] = ()
    searched: int = 1
    followed: int = 0
    skipped: int = 0
    to_set: tuple[str, ...] = ()
    largest: Largest | None = None


NO_SELECTION = Selection(Configuration())

"""The values of a plan's choice among batch sizes, microbatches and meshes."""

from __future__ import annotations

from dataclasses import dataclass

from jaxresid.model.interval import Answer, Interval, interval_between
from jaxresid.text.short_repr import Shown


@dataclass(frozen=True, slots=True, repr=False)
class Configuration(Shown):
    """What a program is planned for besides its checkpoints.

    Attributes:
      batch: the batch size; None: that of the inputs as they are.
      microbatches: in how many microbatches the batch goes through, one after the other, their
        gradients added up in a scan; 1: all at once.
      mesh: the mesh that it is split over, `data=4,model=2`; None: that of the inputs.
    """

    batch: int | None = None
    microbatches: int = 1
    mesh: str | None = None

    def __str__(self) -> str:
        parts = [] if self.batch is None else [f"batch {self.batch}"]
        if self.microbatches > 1:
            parts.append(f"{'in ' * bool(parts)}{self.microbatches} microbatches")
        elif parts:
            parts.append("without accumulation")
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
    """

    configuration: Configuration
    front: tuple[FrontRow, ...] = ()
    beaten: tuple[Beaten, ...] = ()
    searched: int = 1
    followed: int = 0
    skipped: int = 0
    to_set: tuple[str, ...] = ()


NO_SELECTION = Selection(Configuration())

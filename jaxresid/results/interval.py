"""The intervals around estimates of bytes and of time, and what the former say about a budget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal as OneOf

from jaxresid.base.text.short_repr import Shown

Answer = OneOf["fits", "does not fit", "too close"]


@dataclass(frozen=True, slots=True, repr=False)
class Interval(Shown):
    """The bytes that the compiler's figure for an estimate is between, for nine of ten programs.

    Attributes:
      low_nbytes: the lower end.
      high_nbytes: the upper end.
    """

    low_nbytes: int
    high_nbytes: int


@dataclass(frozen=True, slots=True, repr=False)
class IntervalBasis(Shown):
    """What the intervals of a place were measured with.

    Attributes:
      programs: the number of programs.
      places: the places that they were compiled for.
      compilers: the versions of each package that compiled them.
      smallest_nbytes: the peak of the smallest of them.
      largest_nbytes: the peak of the largest.
      others: the installed packages whose version is another one; intervals are wider then.
      widened: the factor that both ends are moved by for that; 1 where `others` is empty.
      coverage: the share of unseen programs whose figure is inside; 1 where it is of those measured
        alone, all of them, as too few were.
    """

    programs: int
    places: tuple[str, ...]
    compilers: Mapping[str, tuple[str, ...]]
    smallest_nbytes: int
    largest_nbytes: int
    others: Mapping[str, str] = field(default_factory=dict)
    widened: float = 1.0
    coverage: float = 0.9


def interval_between(low_nbytes: int | None, high_nbytes: int | None) -> Interval | None:
    """Return the interval between two ends; None where one is not known."""
    if low_nbytes is None or high_nbytes is None:
        return None
    return Interval(low_nbytes, high_nbytes)


def answer(interval: Interval | None, budget_nbytes: int) -> Answer:
    """Return whether what an estimate is of fits a budget.

    A budget inside the interval is too close to tell, and without an interval every budget is.
    """
    if interval is None:
        return "too close"
    if interval.high_nbytes <= budget_nbytes:
        return "fits"
    return "does not fit" if interval.low_nbytes > budget_nbytes else "too close"


@dataclass(frozen=True, slots=True, repr=False)
class TimeBasis(Shown):
    """What estimated times were held against: ratios between placements of checkpoints in a model.

    Attributes:
      place: the place that the programs ran on, or were compiled for.
      by: whether a chip ran them, or XLA's cost analysis, a model as well, said how long they take.
      compilers: the versions of each package that compiled them.
      models: the number of models.
      pairs: the number of pairs of placements, each in one model.
      coverage: the share of the pairs of an unseen model whose ratio is inside the interval.
      factor: what the ratio of two estimated times is divided and multiplied by for that, above 1.
    """

    place: str
    by: OneOf["chip", "compiler"]
    compilers: Mapping[str, tuple[str, ...]]
    models: int
    pairs: int
    coverage: float
    factor: float

    def around(self, ratio: float) -> TimeInterval:
        """Return the interval around the ratio of two estimated times."""
        return TimeInterval(ratio / self.factor - 1, ratio * self.factor - 1)


@dataclass(frozen=True, slots=True, repr=False)
class TimeInterval(Shown):
    """The time of a program over that of the same without a checkpoint, as a share of the latter.

    Attributes:
      low: the lower end, above -1.
      high: the upper end.
    """

    low: float
    high: float

    @property
    def is_about_the_same(self) -> bool:
        """Whether neither program is known to be faster."""
        return self.low <= 0 <= self.high


def time_interval_between(low: float | None, high: float | None) -> TimeInterval | None:
    """Return the interval between two ends; None where one is not known."""
    return None if low is None or high is None else TimeInterval(low, high)

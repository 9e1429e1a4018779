"""How far an estimated time may be off, and what says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal as OneOf


@dataclass(frozen=True, slots=True)
class TimeBasis:
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


@dataclass(frozen=True, slots=True)
class TimeInterval:
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

"""The interval around an estimate, and what it says about a budget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal as OneOf

Answer = OneOf["fits", "does not fit", "too close"]


@dataclass(frozen=True, slots=True)
class Interval:
    """The bytes that the compiler's figure for an estimate is between, for nine of ten programs.

    Attributes:
      low_nbytes: the lower end.
      high_nbytes: the upper end.
    """

    low_nbytes: int
    high_nbytes: int


@dataclass(frozen=True, slots=True)
class IntervalBasis:
    """What the intervals of a place were measured with.

    Attributes:
      programs: the number of programs.
      places: the places that they were compiled for.
      compilers: the versions of each package that compiled them.
      smallest_nbytes: the peak of the smallest of them.
      largest_nbytes: the peak of the largest.
      others: the installed packages whose version is another one; intervals are wider then.
      widened: the factor that both ends are moved by for that; 1 where `others` is empty.
    """

    programs: int
    places: tuple[str, ...]
    compilers: Mapping[str, tuple[str, ...]]
    smallest_nbytes: int
    largest_nbytes: int
    others: Mapping[str, str] = field(default_factory=dict)
    widened: float = 1.0


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

"""The memory of a program over its run: each value, from when until when it is live, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal as OneOf

from jaxresid.base.text.short_repr import Shown
from jaxresid.results.interval import Interval, interval_between
from jaxresid.results.report.checkpoint import Checkpoint
from jaxresid.results.report.peak import LiveValue, Pass
from jaxresid.results.values import Location, Source

# Why a value is live: see `Lifetime.reason`.
LifetimeReason = OneOf[
    "argument", "constant", "output", "gradient", "residual", "temporary", "scratch"
]


@dataclass(frozen=True, slots=True, repr=False)
class ProgramPoint(Shown):
    """One op of a program, and what is live while it runs.

    Attributes:
      primitive: its primitive; None in a program without ops, which has one point.
      source: where it comes from.
      phase: its pass: `forward`, `recompute`, `backward` or, in a step, `update`; `program` where
        no gradient is taken.
      nbytes: the bytes of device memory that are live: arguments + outputs - aliased + temporaries.
    """

    primitive: str | None
    source: Source
    phase: Pass
    nbytes: int


@dataclass(frozen=True, slots=True, repr=False)
class Lifetime(Shown):
    """A value, or small ones of a kind, and the stretch of the program that it is live in.

    Attributes:
      start: the index of the first point that it is live at.
      stop: the index after the last.
      live: the value. Of small ones that are added up `count` is how many are live in this stretch,
        and their kind and bytes are all that is known.
      reason: why it is live. An `argument`, a `constant` and an `output` are there from the
        beginning to the end; a `residual` waits for the backward pass, a `gradient` for the
        optimizer and a `temporary` for an op of the same pass; `scratch` is there only while the op
        runs that makes it.
      read_at: where the last op is that reads it; None: it stays to the end (in a loop, of a trip),
        nothing reads it, or several are added up.
      inside: where the loop is in whose body it lives, anew in each trip; None: in none.
      stack: the user's and the libraries' frames of the op that makes it, outermost first; empty
        for an argument, and where several are added up.
    """

    start: int
    stop: int
    live: LiveValue
    reason: LifetimeReason
    read_at: Source | None = None
    inside: Source | None = None
    stack: tuple[Location, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class Lifetimes(Shown):
    """The memory of one program over its run, op by op, as it is estimated.

    At each point the bytes of the values that are live there add up to those of the point. What a
    compiler keeps in the buffer of an output that is not written yet takes no bytes of its own, and
    is not there.

    Attributes:
      name: '' for the program as it is, else what was changed: `without checkpoint model.py:12`, a
        row of a comparison, `plan`.
      points: the ops in the order in which they run; those of a loop's body are there once, before
        the loop itself. Of a program with so many that its values would be more than 10,000 only
        the one with most bytes of each stretch is there.
      values: the values, at most 10,000; of more the 5,000 biggest and, by kind, the sums of the
        others in each stretch in which they are the same.
      at: the index of the peak in `points`.
      nbytes: the peak, in bytes.
      low_nbytes: the lower end of the interval around it, as in `Peak`.
      high_nbytes: the upper end.
    """

    name: str
    points: tuple[ProgramPoint, ...]
    values: tuple[Lifetime, ...]
    at: int
    nbytes: int
    low_nbytes: int | None = None
    high_nbytes: int | None = None

    @property
    def interval(self) -> Interval | None:
        """The interval around the estimated peak; None where none is known."""
        return interval_between(self.low_nbytes, self.high_nbytes)

    def live_at(self, index: int) -> tuple[Lifetime, ...]:
        """Return what is live at a point, the biggest first.

        Args:
          index: the index of the point.
        """
        found = (each for each in self.values if each.start <= index < each.stop)
        return tuple(sorted(found, key=lambda each: -each.live.nbytes))


def without_names(checkpoints: Sequence[Checkpoint]) -> tuple[str, ...]:
    """Return what the programs without each of a report's checkpoints are called.

    `without checkpoint model.py:12`, with the function where several are at that line, and with a
    number where that does not tell them apart either.
    """
    lines = [_line(each) or each.function for each in checkpoints]
    several = Counter(lines)
    named = [
        f"{line} ({each.function})" if several[line] > 1 and _line(each) else line
        for line, each in zip(lines, checkpoints, strict=True)
    ]
    total, seen = Counter(named), Counter[str]()
    found = []
    for name in named:
        seen[name] += 1
        number = f" #{seen[name]}" if total[name] > 1 else ""
        found.append(f"without checkpoint {name}{number}")
    return tuple(found)


def _line(checkpoint: Checkpoint) -> str:
    place = checkpoint.location
    return "" if place is None else place.place

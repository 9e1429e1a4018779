"""The values of `jaxresid compare`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal as OneOf

from jaxresid.base.text.short_repr import Shown, printable
from jaxresid.base.text.units import format_bytes
from jaxresid.results.compiled import Compiled
from jaxresid.results.display import to_perfetto, to_svg
from jaxresid.results.headline import count_text, headline
from jaxresid.results.interval import (
    Answer,
    Interval,
    TimeBasis,
    TimeInterval,
    answer,
    interval_between,
    time_interval_between,
)
from jaxresid.results.report.lifetimes import Lifetimes
from jaxresid.results.report.next_step import NextStep
from jaxresid.results.report.offloading import Offloading
from jaxresid.results.result import Result
from jaxresid.results.target import JaxInfo, Mesh, PlaceInfo, Target


@dataclass(frozen=True, slots=True, repr=False)
class Timing(Shown):
    """How long something ran on the local device, against the function without checkpoints.

    Attributes:
      seconds: the median of the rounds, in seconds.
      ratio: median over the rounds of its time to that of no checkpoint in the same round; None
        where the function without checkpoints did not run.
      low: the lowest ratio of a round.
      high: the highest ratio of a round.
      rounds: how many rounds there were.
      gradient_error: the greatest difference to the results without checkpoints, relative to the
        greatest absolute value of the array that it is in; None where it cannot be told: one of the
        two gave none, has NaNs, or nothing but zeros and infinities.
      tolerance: what rounding explains, by the narrowest dtype that the function computes in.
    """

    seconds: float
    ratio: float | None
    low: float | None
    high: float | None
    rounds: int
    gradient_error: float | None
    tolerance: float

    @property
    def agrees(self) -> bool | None:
        """Return whether the results are the same up to rounding; None where it cannot be told."""
        return None if self.gradient_error is None else self.gradient_error <= self.tolerance


@dataclass(frozen=True, slots=True, repr=False)
class ComparisonRow(Shown):
    """A function with one policy at the places of a comparison.

    Attributes:
      policy: `none`, `as-written`, the name in `jax.checkpoint_policies` with its names, or
        `module:policy`.
      at: where: `all-sites`, `scan-bodies`, `calls`, `whole` or a place, `model.py:42 (layer)`.
      kept_nbytes: bytes of computed residuals in device memory.
      host_nbytes: bytes of computed residuals in host memory.
      peak_nbytes: the estimated peak, in bytes; on a CPU, where none is estimated, XLA's.
      recompute_flops: FLOPs that it adds to the function without any checkpoint.
      recompute_fraction: that as a share of the function without any checkpoint.
      time_fraction: estimated time over that without any checkpoint, as a share of it; None
        where the chip is not known.
      pareto: whether no other row without host bytes has both a lower peak and less to recompute.
      knee: whether it is, of those, the one beyond which saving memory gets expensive.
      error: why there are no figures.
      uncosted: primitives that no cost rule covers; recompute and time are lower bounds.
      measured: the timing on the local device, if there is one.
      measure_error: why there is no timing.
      offloading: the bytes in host memory, where any are or could be there.
      compiled: the figures of XLA, if they were asked for.
      low_nbytes: the lower end of the interval around `peak_nbytes`, as in `Peak`.
      high_nbytes: the upper end.
      by: whose peak it is compared with other rows by: XLA's where all rows without an error have
        one.
      rank_changed: whether XLA's peak gives it another rank among the rows than the estimate does.
      low_time_fraction: the lower end of the interval around `time_fraction`; None where the
        estimated time of such programs was not checked.
      high_time_fraction: the upper end.
      answer: whether it fits the memory of the place: by XLA where XLA was asked, else by its
        interval; None where that is not known.
      suggested: whether it is the row to take: of those that fit the one that recomputes least,
        without host memory if one does; where none is known to fit, of those that may; where none
        may, the one with the lowest peak.
    """

    policy: str
    at: str
    kept_nbytes: int | None = None
    host_nbytes: int | None = None
    peak_nbytes: int | None = None
    recompute_flops: int | None = None
    recompute_fraction: float | None = None
    time_fraction: float | None = None
    pareto: bool = False
    knee: bool = False
    error: str | None = None
    uncosted: tuple[str, ...] = ()
    measured: Timing | None = None
    measure_error: str | None = None
    offloading: Offloading | None = None
    compiled: tuple[Compiled, ...] = ()
    low_nbytes: int | None = None
    high_nbytes: int | None = None
    by: OneOf["estimate", "xla"] = "estimate"
    rank_changed: bool = False
    low_time_fraction: float | None = None
    high_time_fraction: float | None = None
    answer: Answer | None = None
    suggested: bool = False

    @property
    def time_interval(self) -> TimeInterval | None:
        """The interval around the estimated time; None where it was not checked."""
        return time_interval_between(self.low_time_fraction, self.high_time_fraction)

    @property
    def xla_nbytes(self) -> int | None:
        """XLA's peak, in bytes; None where there is none."""
        return next((compiled.peak_nbytes for compiled in self.compiled), None)

    @property
    def compared_nbytes(self) -> int | None:
        """The peak that it is compared with other rows by, in bytes; None where there is none."""
        return self.xla_nbytes if self.by == "xla" else self.peak_nbytes

    @property
    def interval(self) -> Interval | None:
        """The interval around the estimated peak; None where none is known."""
        return interval_between(self.low_nbytes, self.high_nbytes)


_VERBS: dict[Answer, str] = {
    "fits": "fits",
    "too close": "may fit",
    "does not fit": "is the smallest and does not fit",
}


def with_answers(
    rows: Sequence[ComparisonRow], memory_nbytes: int | None
) -> tuple[ComparisonRow, ...]:
    """Return rows that say whether they fit, with the one to take marked.

    Args:
      rows: the rows.
      memory_nbytes: the memory of the place; None where it is not known.
    """
    is_compiled = any(c.error is None for row in rows for c in row.compiled)
    answers = [_by_xla(row) if is_compiled else _by_estimate(row, memory_nbytes) for row in rows]

    def order(pair: tuple[ComparisonRow, Answer]) -> tuple[int, ...]:
        row, fits = pair
        peak, cost = row.xla_nbytes or row.peak_nbytes or 0, row.recompute_flops or 0
        if fits == "does not fit":
            return 2, peak, bool(row.host_nbytes), cost
        if fits == "too close":  # of what may fit, what is likelier to comes before what is cheaper
            return (
                1,
                memory_nbytes is not None and peak > memory_nbytes,
                bool(row.host_nbytes),
                cost,
            )
        return 0, bool(row.host_nbytes), cost, peak

    known = [(row, fits) for row, fits in zip(rows, answers, strict=True) if fits is not None]
    first, _ = min(known, key=order, default=(None, None))
    return tuple(
        replace(row, answer=fits, suggested=row is first)
        for row, fits in zip(rows, answers, strict=True)
    )


def _by_xla(row: ComparisonRow) -> Answer | None:
    for compiled in row.compiled:
        if compiled.may_fit:
            return "too close"
        if compiled.fits is not None:
            return "fits" if compiled.fits else "does not fit"
    return None


def _by_estimate(row: ComparisonRow, memory_nbytes: int | None) -> Answer | None:
    if row.interval is None or not memory_nbytes:
        return None
    return answer(row.interval, memory_nbytes)


@dataclass(frozen=True, slots=True, repr=False)
class Comparison(Result):
    """A function under several policies.

    Attributes:
      target: what was compared.
      jax: the JAX that traced.
      place: the place that the figures are for.
      chip: the chip whose published figures the time is estimated from; None where none are known.
      at: where the policies go, as in `Row`.
      places: where the policy goes, as a user finds them: `model.py:42 (layer) ×48`.
      rows: one row for each policy.
      warnings: what was assumed, and what may be wrong.
      measured_on: the local device of the timings, if there are any.
      mesh: the devices that the program is split over; None: one device.
      time_basis: what estimated times of such programs were held against; None where nothing was.
      times_checked_on: the places whose estimated times were held against something, in words.
      lifetimes: from when until when each value is live, where that was asked for: in the program
        as it is written, then in each other row without an error, by its policy.
      next_step: the one thing to do next, where no row is known to fit; else None.
    """

    target: Target
    jax: JaxInfo
    place: PlaceInfo
    chip: str | None
    at: str
    places: tuple[str, ...]
    rows: tuple[ComparisonRow, ...]
    warnings: tuple[str, ...] = ()
    measured_on: str | None = None
    mesh: Mesh | None = None
    time_basis: TimeBasis | None = None
    times_checked_on: tuple[str, ...] = ()
    lifetimes: tuple[Lifetimes, ...] = ()
    next_step: NextStep | None = None

    @property
    def suggestion(self) -> ComparisonRow | None:
        """The row to take; None where it is not known of any whether it fits."""
        return next((row for row in self.rows if row.suggested), None)

    def _headline(self) -> str:
        peaks = [row.compared_nbytes for row in self.rows if row.compared_nbytes is not None]
        best = next((row for row in self.rows if row.knee), None)
        first = self.suggestion
        return headline(
            "Comparison",
            self.target,
            [self.place.name],
            [
                f"{count_text(len(self.rows), 'row')} at {printable(self.at)}",
                f"peaks {format_bytes(min(peaks))} to {format_bytes(max(peaks))}" if peaks else "",
                f"{printable(first.policy)} {_VERBS[first.answer]}"
                if first and first.answer
                else "",
                f"knee {printable(best.policy)}" if best else "",
            ],
        )

    def to_svg(self) -> str:
        """Return the rows by peak and recomputation as a picture in SVG, without scripts.

        Raises:
          ValueError: no row has figures.
        """
        return to_svg(self)

    def to_perfetto(self) -> bytes:
        """Return when each value is live, in each row, as a trace for ui.perfetto.dev.

        Raises:
          ValueError: it has no `lifetimes`.
        """
        return to_perfetto(self)

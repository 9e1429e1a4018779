"""The values of `jaxresid plan`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal as OneOf

from jaxresid.base.option_types import Aim
from jaxresid.base.text.short_repr import Shown
from jaxresid.base.text.units import format_bytes
from jaxresid.results.display import to_perfetto, to_svg
from jaxresid.results.headline import count_text, headline, peak_text
from jaxresid.results.interval import (
    Answer,
    Ranged,
    TimeBasis,
    TimeInterval,
    time_interval_between,
)
from jaxresid.results.plan.joint import NO_SELECTION, Selection
from jaxresid.results.plan.lower_bound import NO_LOWER_BOUND, LowerBound, TriedPlace
from jaxresid.results.report.lifetimes import Lifetimes
from jaxresid.results.report.next_step import NextStep
from jaxresid.results.result import Result
from jaxresid.results.target import JaxInfo, PlaceInfo, Target
from jaxresid.results.values import Location


@dataclass(frozen=True, slots=True, repr=False)
class Expression(Shown):
    """An expression in source whose value can be given a name.

    Attributes:
      file: the path, relative to the working directory where it is below it.
      line: the first row, from 1.
      column: the first column in code points, from 0.
      end_column: the column behind the end.
      code: its source; '' where it is not known.
    """

    file: str
    line: int
    column: int
    end_line: int
    end_column: int
    function: str
    code: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class PlannedValue(Shown):
    """A value of a checkpoint's body that a plan saves or offloads.

    Attributes:
      nbytes: its bytes, all calls and trips together.
      expression: where it has to be named; None for one that already has that name.
    """

    name: str
    action: OneOf["save", "offload"]
    nbytes: int
    expression: Expression | None = None


@dataclass(frozen=True, slots=True, repr=False)
class PlannedPart(Shown):
    """The treatment that a plan gives to some of a place's calls.

    Attributes:
      calls: how many calls, in a row in program order.
      policy: as written after `jax.checkpoint_policies.`, `save_only_these_names('qkv')`; None: no
        policy (or no checkpoint).
      values: the values that the policy saves and offloads, where the plan chose by value.
      segments: how many iterations the segments have that a loop is cut into, each in a checkpoint,
        by level, the outermost first; what is left of the loop follows as it is.
      checkpoints: how many carries a solver's loop keeps; None where it is none.
    """

    calls: int
    checkpointed: bool
    policy: str | None = None
    values: tuple[PlannedValue, ...] = ()
    segments: tuple[int, ...] = ()
    checkpoints: int | None = None


@dataclass(frozen=True, slots=True, repr=False)
class PlannedSite(Shown):
    """The treatment that a plan gives to one place.

    Attributes:
      kind: `checkpoint` for one that is in the code, `scan` for the body of a loop, `call` for
        calls of a function, `block` for the iterations of a Python loop, `whole` for the target
        itself or the loss of a step, `segments` for stretches of a loop's iterations, `groups` for
        those of a Python loop, `solver` for the checkpointed while loop of Equinox or Diffrax.
      calls: how many times the program holds it, unrolled; `parts` add up to it.
      trips: how often it runs, all calls and loops together.
      parts: what the plan does with the calls, in program order.
      changed: whether the code has to change for it.
      library: the installed package that holds the function; None for the user's own.
      defined: where the function is defined; None where it is not known.
    """

    kind: OneOf["checkpoint", "scan", "call", "block", "whole", "segments", "groups", "solver"]
    function: str
    location: Location | None
    calls: int
    trips: int
    parts: tuple[PlannedPart, ...]
    changed: bool
    library: str | None = None
    defined: Location | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Plan(Result, Ranged):
    """The cheapest way found to fit a function into a budget of memory.

    Attributes:
      chip: the chip whose published figures the time is estimated from; None where none are known.
      answer: whether it fits. An estimate is too close to the budget where the budget is inside its
        interval, unless arguments and outputs alone are more; XLA's figure never is.
      lowest_nbytes: the lowest peak of everything that was tried.
      written_nbytes: the peak of the code as it is; None on a CPU whose compiler had no time for
        it, and where it was not yet traced when the search was interrupted.
      plain_nbytes: the peak of the code without any checkpoint; None as `written_nbytes`.
      peak_nbytes: the peak of the function with the plan applied: XLA's figure where the plan is
        confirmed, else an estimate. Where it is above the budget, the figures and sites are those
        of the lowest peak found. For a GPU that is not there it is the larger of two: with Triton's
        matmuls and with cuBLAS's.
      triton_peak_nbytes: XLA's figure with Triton's matmuls, where that with cuBLAS's is larger and
        so is `peak_nbytes`; else None.
      estimate_nbytes: the estimate of `peak_nbytes`; None on a CPU, where there is none. It,
        `kept_nbytes`, `host_nbytes` and `recompute_flops` are those of the written code, traced,
        where the plan is verified.
      kept_nbytes: the computed residuals in device memory.
      host_nbytes: the computed residuals in host memory.
      recompute_flops: what runs on top of `plain_flops`.
      plain_flops: FLOPs without any checkpoint.
      recompute_fraction: `recompute_flops` over `plain_flops`.
      time_fraction: estimated time over that without any checkpoint; None where it is not known.
      proven: whether nothing cheaper among `choices` fits, by the figures that there are: each that
        may be cheaper was traced, or what no checkpoint can remove is already too much.
      tried: how many variants were traced.
      code: the code to write, one block for each stretch of lines that changes.
      unwritten: what of the plan cannot be written as an edit, each with the reason and what to do
        by hand.
      verified: whether the code, traced, gives the figures.
      doubt: why it is not verified; None where it is.
      confirmed: whether XLA compiled the plan, so that the peak is its figure.
      by_xla: those of `peak_nbytes`, `lowest_nbytes`, `written_nbytes` and `plain_nbytes` that are
        XLA's figures.
      compiles: how many variants XLA was asked about.
      unconfirmed: variants that XLA was asked about without an answer, in words.
      uncosted: primitives that no cost rule covers; recompute and time are lower bounds.
      low_nbytes: the lower end of the interval around `peak_nbytes`, as in `Peak`; None where that
        is XLA's figure.
      choices: what was tried at each place.
      lower_bound: what no checkpoint can remove, and what would lower it.
      interrupted: whether the search was stopped by Ctrl-C; this is the best it had found.
      aim: what was minimised; of `throughput` the time that an item takes.
      seconds: the estimated time of the whole batch; None where it is not known.
      selection: the batch size, microbatches and mesh that it is for, and what they were chosen
        from.
      low_time_fraction: the lower end of the interval around `time_fraction`; None where the
        estimated time of such programs was not checked.
      time_basis: what estimated times of such programs were held against; None where nothing was.
      times_checked_on: the places whose estimated times were held against something, in words.
      lifetimes: from when until when each value is live, where that was asked for: in the code as
        it is, then, called `plan`, with the plan applied. That is not there where the plan leaves
        the code as it is, nor where its code was traced in another process and gives other figures
        than it was to.
      next_step: the one thing to do next, where it is not known to fit; else None.
    """

    target: Target
    jax: JaxInfo
    place: PlaceInfo
    chip: str | None
    budget_nbytes: int
    offload: bool
    answer: Answer
    lowest_nbytes: int
    written_nbytes: int | None
    plain_nbytes: int | None
    peak_nbytes: int
    estimate_nbytes: int | None
    kept_nbytes: int
    host_nbytes: int
    recompute_flops: int
    plain_flops: int
    recompute_fraction: float
    time_fraction: float | None
    sites: tuple[PlannedSite, ...]
    proven: bool
    tried: int
    code: tuple[str, ...] = ()
    unwritten: tuple[str, ...] = ()
    verified: bool = False
    doubt: str | None = None
    confirmed: bool = False
    by_xla: tuple[str, ...] = ()
    compiles: int = 0
    unconfirmed: tuple[str, ...] = ()
    uncosted: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    low_nbytes: int | None = None
    high_nbytes: int | None = None
    triton_peak_nbytes: int | None = None
    choices: tuple[TriedPlace, ...] = ()
    lower_bound: LowerBound = NO_LOWER_BOUND
    interrupted: bool = False
    aim: Aim = "recompute"
    seconds: float | None = None
    selection: Selection = NO_SELECTION
    low_time_fraction: float | None = None
    high_time_fraction: float | None = None
    time_basis: TimeBasis | None = None
    times_checked_on: tuple[str, ...] = ()
    lifetimes: tuple[Lifetimes, ...] = ()
    next_step: NextStep | None = None

    def _headline(self) -> str:
        by = " by XLA" if self.confirmed else ""
        chosen = str(self.selection.configuration)
        last = [chosen] if self.selection.largest else []
        if self.target.has_gradient:
            last = [
                f"{self.recompute_fraction:.1%} recomputed",
                count_text(len(self.sites), "place"),
            ]
        return headline(
            "Plan",
            self.target,
            [self.place.name],
            [
                f"{self.answer} {format_bytes(self.budget_nbytes)}"
                if self.answer != "too close"
                else f"too close to {format_bytes(self.budget_nbytes)}",
                peak_text(self.peak_nbytes, self.interval, by),
                *last,
            ],
        )

    def to_svg(self) -> str:
        """Return the plans that no other beats, by peak and recomputation, as SVG."""
        return to_svg(self)

    def to_perfetto(self) -> bytes:
        """Return when each value is live, before and with the plan, as a trace for ui.perfetto.dev.

        Raises:
          ValueError: it has no `lifetimes`.
        """
        return to_perfetto(self)

    @property
    def time_interval(self) -> TimeInterval | None:
        """The interval around the estimated time; None where it was not checked."""
        return time_interval_between(self.low_time_fraction, self.high_time_fraction)

    @property
    def fits(self) -> bool:
        """Whether it is known to fit, or an estimate is far enough below the budget."""
        return self.answer == "fits"

    @property
    def is_within(self) -> bool:
        """Whether its peak is within the budget, however sure that is."""
        return self.peak_nbytes <= self.budget_nbytes

    @property
    def is_out_of_reach(self) -> bool:
        """Whether what no checkpoint can remove is more than the budget by itself.

        Arguments and outputs are counted, not estimated.
        """
        return not self.is_within and self.lower_bound.held_nbytes > self.budget_nbytes

    @property
    def is_untraced(self) -> bool:
        """Return whether all of it can be written, but the code could not be traced."""
        return self.doubt is not None and not self.unwritten

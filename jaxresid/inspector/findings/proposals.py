"""Changes of the traced program that findings propose, and what each does to the peak."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from jaxresid.base.text.units import format_bytes, format_flops
from jaxresid.base.thresholds import NEGLIGIBLE_FLOPS, WORTH_SAYING
from jaxresid.inspector.program.build import Program
from jaxresid.inspector.trace.traced import Traced
from jaxresid.inspector.variants.rewrites.effects import Figures, Rewrites
from jaxresid.jax_compat.jaxpr_types import Jaxpr
from jaxresid.results import CompiledChange, Cost, Finding, Interval, LiveValue, Report

# What a change is for: a lower peak, or fewer FLOPs, which may take memory.
Gain = Literal["memory", "flops"]


@dataclass(frozen=True, slots=True, eq=False)
class Changed:
    """The program with a change, for a compiler to be asked about."""

    trace: Traced
    program: Program


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """A finding with the change that it proposes.

    Attributes:
      changed: returns the whole program with the change made.
      gain: what the change is for.
      limit_nbytes: the bytes that it says that the changed program fits; None: it does not say.
      change: the change in a few words, `attention for 128 queries at a time`; '' where it has
        none.
    """

    finding: Finding
    changed: Callable[[], Changed]
    gain: Gain = "memory"
    limit_nbytes: int | None = None
    change: str = ""

    @property
    def change_text(self) -> str:
        """The change in words, with its finding: `one query at a time (attention-...)`."""
        where = self.finding.location
        place = f", {where.file}:{where.line}" if where else ""
        return f"{self.change or 'the remedy'} ({self.finding.name}{place})"


@dataclass(frozen=True, slots=True)
class ChangeEffect:
    """What the change of a finding does to the peak of the program, and what it costs.

    Attributes:
      before_nbytes: the peak as the program is, by XLA where it compiled both.
      flops_fraction: what it adds, as a share of the FLOPs of the program as it is.
    """

    proposal: Proposal
    before_nbytes: int
    after_nbytes: int
    flops_fraction: float

    @classmethod
    def of(cls, proposal: Proposal) -> ChangeEffect | None:
        """Return the effect of a proposal; None where it is for FLOPs, or XLA refutes it."""
        measured, compiled = proposal.finding.measured, proposal.finding.compiled
        if proposal.gain != "memory" or (compiled and compiled.verdict == "refuted"):
            return None
        before, after = measured["peak_before_nbytes"], measured["peak_nbytes"]
        if compiled and compiled.peak_before_nbytes and compiled.peak_nbytes:
            before, after = compiled.peak_before_nbytes, compiled.peak_nbytes
        fraction = measured.get("recompute_fraction", 0.0)
        assert isinstance(before, int)
        assert isinstance(after, int)
        assert isinstance(fraction, float)
        return cls(proposal, before, after, fraction)

    @property
    def saved_nbytes(self) -> int:
        """By how much the change lowers the peak."""
        return self.before_nbytes - self.after_nbytes

    @property
    def cost_text(self) -> str:
        """What it adds: `for 4.4% more FLOPs`."""
        if self.flops_fraction <= 0:
            return "for no more FLOPs"
        return f"for {self.flops_fraction:.1%} more FLOPs"

    @property
    def text(self) -> str:
        """The change with its effect: `... takes the peak from 9.00 GiB to 4.00 GiB, for ...`."""
        before, after = format_bytes(self.before_nbytes), format_bytes(self.after_nbytes)
        return f"{self.proposal.change_text} takes it from {before} to {after}, {self.cost_text}"


def proposal(
    finding: Finding,
    rewrites: Rewrites,
    number: int,
    jaxpr: Jaxpr,
    gain: Gain = "memory",
    change: str = "",
) -> Proposal:
    """Return a finding with the rewrite that it proposes.

    Args:
      finding: the finding.
      rewrites: what is differentiated.
      number: the number of what is rewritten among that.
      jaxpr: the rewritten open jaxpr.
      gain: what the rewrite is for.
      change: the rewrite in a few words.
    """
    program = functools.partial(rewrites.program, number, jaxpr)
    return Proposal(finding, lambda: Changed(*program()), gain, change=change)


@dataclass(frozen=True, slots=True)
class PeakEffect:
    """What a change does to the peak.

    Attributes:
      interval: the interval around an estimated `after_nbytes`; None where there is none.
    """

    before_nbytes: int
    after_nbytes: int
    by: Literal["estimate", "xla"]
    interval: Interval | None = None

    @property
    def saved_nbytes(self) -> int:
        """By how much the change lowers the peak."""
        return self.before_nbytes - self.after_nbytes

    @property
    def is_worth_saying(self) -> bool:
        """Whether it takes enough off the peak to be told of."""
        return self.saved_nbytes > WORTH_SAYING * self.before_nbytes

    @property
    def text(self) -> str:
        """The effect in words: `the estimated peak falls by 2.00 GiB, from ...`."""
        whose = "XLA's peak" if self.by == "xla" else "the estimated peak"
        around = ""
        if self.interval is not None:
            low, high = self.interval.low_nbytes, self.interval.high_nbytes
            around = f" ({format_bytes(low)} to {format_bytes(high)})"
        return (
            f"{whose} falls by {format_bytes(self.saved_nbytes)}"
            f" ({self.saved_nbytes / self.before_nbytes:.0%}), from"
            f" {format_bytes(self.before_nbytes)} to {format_bytes(self.after_nbytes)}{around}"
        )

    @property
    def measured(self) -> dict[str, object]:
        """The figures, by name."""
        figures: dict[str, object] = {
            "peak_before_nbytes": self.before_nbytes,
            "peak_nbytes": self.after_nbytes,
            "saved_nbytes": self.saved_nbytes,
            "by": self.by,
        }
        if self.interval is not None:
            figures["low_nbytes"] = self.interval.low_nbytes
            figures["high_nbytes"] = self.interval.high_nbytes
        return figures


def live_nbytes_of(shapes: Iterable[Sequence[int]], live: Iterable[LiveValue]) -> int:
    """Return the bytes of what is live and may be of one of these shapes, or a stack of such.

    A compiler may have the dims in another order.
    """
    dims = [Counter(shape) for shape in shapes]
    return sum(
        v.nbytes
        for v in live
        if v.aval is not None and any(not shape - Counter(v.aval.shape) for shape in dims)
    )


def peak_change(before: int, after: int, called: str = "estimated peak") -> str:
    """Return what becomes of a peak in bytes, in words: `estimated peak falls from ...`."""
    shown, changed = format_bytes(before), format_bytes(after)
    if shown == changed:
        return f"{called} stays at {shown}"
    return f"{called} {'rises' if after > before else 'falls'} from {shown} to {changed}"


def kept_change(before: int, after: int) -> str:
    """Return what is kept after a change: `16.00 MiB are kept instead of 64.00 MiB`."""
    shown, changed = format_bytes(before), format_bytes(after)
    if shown == changed:
        return f"{shown} are kept as before"
    return f"{changed} are kept instead of {shown}"


def rewrite_effect(
    report: Report, rewrites: Rewrites, figures: Figures
) -> tuple[str, dict[str, object]]:
    """Return what a rewrite does to peak, kept bytes and FLOPs, in words and by name.

    The words are `estimated peak falls from ...`. A rewritten program may compute less, and not
    only where that is its point: its calls are inlined, of which JAX may leave out more. That is no
    recomputation. The report is that of the program as it is, the figures those of the rewritten.
    """
    return change_effect(report, rewrites.cost(), figures)


def change_effect(report: Report, cost: Cost, figures: Figures) -> tuple[str, dict[str, object]]:
    """Return what a change of a program with some cost does, as `rewrite_effect` does."""
    assert report.peak is not None
    peak, kept = report.peak.nbytes, report.totals.computed_nbytes
    before = cost.flops
    more = figures.cost.flops - before
    peak_after, kept_after = figures.peak_nbytes, figures.kept_nbytes
    text = peak_change(peak, peak_after)
    if format_bytes(kept_after) != format_bytes(kept):
        text += f", and {kept_change(kept, kept_after)}"
    if more > NEGLIGIBLE_FLOPS * before:
        text += f", for {format_flops(more)} more ({more / before:.1%})"
    return text, {
        "peak_nbytes": peak_after,
        "peak_before_nbytes": peak,
        "kept_nbytes": kept_after,
        "kept_before_nbytes": kept,
        "flops": figures.cost.flops,
        "flops_before": before,
        "recompute_flops": max(more, 0),
        "recompute_fraction": max(more, 0) / before if before else 0.0,
    }


def fewer_flops(rewrites: Rewrites, number: int, jaxpr: Jaxpr) -> Figures | None:
    """Return the figures of a rewrite; None where it saves too few FLOPs, or fails."""
    figures, before = rewrites.figures(number, jaxpr), rewrites.cost().flops
    if figures is None or before - figures.cost.flops < WORTH_SAYING * before:
        return None
    return figures


def flops_effect(
    report: Report, rewrites: Rewrites, figures: Figures
) -> tuple[str, dict[str, object]]:
    """Return what a rewrite for FLOPs does, as `rewrite_effect` does."""
    assert report.peak is not None
    before, (_, measured) = rewrites.cost().flops, rewrite_effect(report, rewrites, figures)
    fewer = before - figures.cost.flops
    return (
        f"{format_flops(fewer)} less are computed ({fewer / before:.1%}),"
        f" {kept_change(report.totals.computed_nbytes, figures.kept_nbytes)}, and the"
        f" {peak_change(report.peak.nbytes, figures.peak_nbytes)}"
    ), measured


def compiled_change(
    on: str,
    before: int | None,
    after: int | None,
    reason: str,
    gain: Gain = "memory",
    limit_nbytes: int | None = None,
) -> CompiledChange:
    """Return what a compiler says of a change.

    It refutes a change for the peak that takes less off its peak than a finding has to be worth,
    and one that does not fit as the finding says.
    It counts no FLOPs, so that a change for these is not confirmed; its peaks are told all the
    same.

    Args:
      on: the place that it compiles for.
      before: its peak of the program as it is, in bytes; None where there is none.
      after: that of the changed program.
      reason: why there is none, of either.
      gain: what the change is for.
      limit_nbytes: see `Proposal`.
    """
    if before is None or after is None:
        return CompiledChange(on, "unconfirmed", before, after, reason)
    if gain == "flops":
        return CompiledChange(on, "unconfirmed", before, after, "compilers do not count FLOPs")
    if not PeakEffect(before, after, "xla").is_worth_saying:
        return CompiledChange(on, "refuted", before, after)
    if limit_nbytes is not None and after > limit_nbytes:
        more = f"which is more than {format_bytes(limit_nbytes)}"
        return CompiledChange(on, "refuted", before, after, more)
    return CompiledChange(on, "confirmed", before, after)


def with_compiled(finding: Finding, change: CompiledChange) -> Finding:
    """Return a finding with what a compiler says of the change that it proposes.

    One that the compiler refutes says so before all else, and has no remedy.
    """
    message, help = finding.message, finding.help
    measured = {**finding.measured, "compiler_verdict": change.verdict}
    if change.verdict == "unconfirmed":
        measured["unconfirmed"] = change.reason
    before, after = change.peak_before_nbytes, change.peak_nbytes
    if before is not None and after is not None:
        measured["compiler_peak_before_nbytes"] = before
        measured["compiler_peak_nbytes"] = after
        effect = peak_change(before, after, "peak")
        if change.verdict == "refuted":
            effect += f", {change.reason}" if change.reason else ""
            message = f"refuted by XLA for {change.on}, whose {effect}. By the estimate: {message}"
            help = ""
        elif finding.measured.get("by") != "xla":
            agrees = " agrees" if change.verdict == "confirmed" else ""
            message = f"{message}. XLA for {change.on}{agrees}: its {effect}"
    return replace(finding, message=message, help=help, measured=measured, compiled=change)

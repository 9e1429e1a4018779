"""Changes of the traced program that findings propose, and what each does to the peak."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from jaxresid.inspector.program.build import Program
from jaxresid.inspector.trace.traced import Traced
from jaxresid.inspector.variants.rewrites.effects import Figures, Rewrites
from jaxresid.model import Interval, Report
from jaxresid.text.units import format_bytes, format_flops

# Of the peak; a change that takes less off it is not told of.
WORTH_SAYING = 0.03


@dataclass(frozen=True, slots=True)
class Proposal:
    """The program with the change that a finding proposes, for a compiler to be asked about.

    Attributes:
      finding: the name of the rule.
      trace: the trace with the change.
      program: the program of it.
    """

    finding: str
    trace: Traced
    program: Program


@dataclass(frozen=True, slots=True)
class PeakEffect:
    """What a change does to the peak.

    Attributes:
      before_nbytes: the peak as it is.
      after_nbytes: the peak with the change.
      by: whose figures these are.
      interval: the interval around an estimated `after_nbytes`; None where there is none.
    """

    before_nbytes: int
    after_nbytes: int
    by: Literal["estimate", "xla"]
    interval: Interval | None = None

    @property
    def saved_nbytes(self) -> int:
        """How much lower the peak is with the change, in bytes."""
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
        found: dict[str, object] = {
            "peak_before_nbytes": self.before_nbytes,
            "peak_nbytes": self.after_nbytes,
            "saved_nbytes": self.saved_nbytes,
            "by": self.by,
        }
        if self.interval is not None:
            found["low_nbytes"] = self.interval.low_nbytes
            found["high_nbytes"] = self.interval.high_nbytes
        return found


def peak_change(before: int, after: int) -> str:
    """Return what becomes of an estimated peak, in words: `estimated peak falls from ...`.

    Args:
      before: the peak in bytes as the program is.
      after: that of the changed one. Where both read the same, the peak `stays at` it.
    """
    shown, changed = format_bytes(before), format_bytes(after)
    if shown == changed:
        return f"estimated peak stays at {shown}"
    return f"estimated peak {'rises' if after > before else 'falls'} from {shown} to {changed}"


def rewrite_effect(
    report: Report, rewrites: Rewrites, figures: Figures
) -> tuple[str, dict[str, object]]:
    """Return what a rewrite does to peak, kept bytes and FLOPs, in words and by name.

    The words are `estimated peak falls from ...`.

    Args:
      report: the report of the program as it is, with an estimated peak.
      rewrites: the program.
      figures: the figures of the rewritten one.
    """
    assert report.peak is not None
    peak, kept = report.peak.nbytes, report.totals.computed_nbytes
    before = rewrites.cost().flops
    more = figures.cost.flops - before
    peak_after, kept_after = figures.peak_nbytes, figures.kept_nbytes
    text = peak_change(peak, peak_after)
    if kept_after != kept:
        text += f", and {format_bytes(kept_after)} are kept instead of {format_bytes(kept)}"
    if more > 0:
        text += f", for {format_flops(more)} more ({more / before:.1%})"
    return text, {
        "peak_nbytes": peak_after,
        "peak_before_nbytes": peak,
        "kept_nbytes": kept_after,
        "kept_before_nbytes": kept,
        "recompute_flops": more,
    }


def effect_by_xla(
    finding: str, report: Report, proposed: Mapping[str, int | None]
) -> PeakEffect | None:
    """Return the effect of a change by the compiler's figures; None where these are not known.

    Args:
      finding: the name of the rule that proposes it.
      report: the report, with what the compiler says of the program as it is.
      proposed: the compiler's peak, in bytes, of the program with the change of each finding.
    """
    before = next((c.peak_nbytes for c in report.compiled), None)
    after = proposed.get(finding)
    if before is None or after is None:
        return None
    return PeakEffect(before, after, "xla")

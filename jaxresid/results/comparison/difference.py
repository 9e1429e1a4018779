"""The value of `jaxresid diff`: what two reports say differently, by source line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal as OneOf

from jaxresid.base.text.short_repr import Shown, printable
from jaxresid.results.display import show
from jaxresid.results.headline import count_text, headline, signed_bytes
from jaxresid.results.interval import Interval, interval_between
from jaxresid.results.report.checkpoint import Checkpoint, Finding
from jaxresid.results.result import Result
from jaxresid.results.target import JaxInfo, Mesh, PlaceInfo, Target
from jaxresid.results.values import Aval, Location, Totals

# Peaks and recomputation are the same where they differ by no more than this share of the larger.
TOLERANCE = 0.01
# Recomputation is the same where it differs by less than this share of all FLOPs: shares are shown
# with one digit after the point, and less of them rounds to none.
NEGLIGIBLE_RECOMPUTE = 0.0005


@dataclass(frozen=True, slots=True, repr=False)
class DiffSide(Shown):
    """One of two reports: what it is of, and its figures.

    Attributes:
      label: what the side is called: a revision, a file, `working tree`, a flag.
      target: what was reported on.
      jax: the JAX that traced.
      place: the place that the figures are for.
      mesh: the devices that the program is split over; None: one device.
      totals: the bytes of the residuals by kind.
      peak_nbytes: the peak, in bytes; None where none is known.
      peak_by: whether the peak is an estimate, or XLA's of a compiled program; None without one.
      low_nbytes: the lower end of the interval around an estimate; None where none is known.
      high_nbytes: the upper end.
      breakdown: what the estimated peak is made of: bytes by kind.
      recompute_flops: FLOPs that the checkpoints add.
      total_flops: FLOPs of everything.
    """

    label: str
    target: Target
    jax: JaxInfo
    place: PlaceInfo
    mesh: Mesh | None
    totals: Totals
    peak_nbytes: int | None
    peak_by: OneOf["estimate", "xla"] | None
    low_nbytes: int | None
    high_nbytes: int | None
    breakdown: tuple[tuple[str, int], ...]
    recompute_flops: int
    total_flops: int

    @property
    def interval(self) -> Interval | None:
        """The interval around the estimated peak; None where none is known."""
        return interval_between(self.low_nbytes, self.high_nbytes)

    @property
    def recompute_fraction(self) -> float | None:
        """The recomputed FLOPs as a share of all others; None where there are no others."""
        others = self.total_flops - self.recompute_flops
        return self.recompute_flops / others if others > 0 else None


@dataclass(frozen=True, slots=True, repr=False)
class ValueDifference(Shown):
    """Values alike that one side keeps and the other does not, or that differ in shape or dtype.

    Attributes:
      change: `added`: only the later side keeps them; `removed`: only the earlier one; `changed`:
        both do, in other shapes, dtypes or memories.
      count: how many there are.
      primitive: what computes them; None for arguments and constants.
      name: their `checkpoint_name`, if any.
      path: the path of an argument, repeated layers as one; None for others.
      before: one of them on the earlier side; None where they are added.
      after: one of them on the later side; None where they are removed.
    """

    change: OneOf["added", "removed", "changed"]
    count: int
    primitive: str | None
    name: str | None
    path: str | None
    before: Aval | None
    after: Aval | None

    @property
    def before_nbytes(self) -> int:
        """Bytes of all of them on the earlier side."""
        return 0 if self.before is None else self.count * self.before.nbytes

    @property
    def after_nbytes(self) -> int:
        """Bytes of all of them on the later side."""
        return 0 if self.after is None else self.count * self.after.nbytes

    @property
    def growth_nbytes(self) -> int:
        """Bytes that they take more on the later side; negative for fewer."""
        return self.after_nbytes - self.before_nbytes


@dataclass(frozen=True, slots=True, repr=False)
class LineDifference(Shown):
    """A line of code whose values take other memory than before.

    A value that is computed at another line now, as in a helper that it was moved to, counts there
    on both sides: what is followed is no difference.

    Attributes:
      before: where the line was; None where it had nothing, or is not in the user's code.
      after: where it is now; None where it has nothing any more, or is not in the user's code.
      scope: the module path, repeated layers as one; '' where there is none.
      kept_before_nbytes: bytes of its computed residuals in device memory, earlier.
      kept_after_nbytes: the same now.
      host_before_nbytes: bytes of its computed residuals in host memory, earlier.
      host_after_nbytes: the same now.
      peak_before_nbytes: bytes of its values that were live at the estimated peak.
      peak_after_nbytes: the same now.
      values: its residuals that differ, those that differ most first.
    """

    before: Location | None
    after: Location | None
    scope: str
    kept_before_nbytes: int
    kept_after_nbytes: int
    host_before_nbytes: int = 0
    host_after_nbytes: int = 0
    peak_before_nbytes: int = 0
    peak_after_nbytes: int = 0
    values: tuple[ValueDifference, ...] = ()

    @property
    def location(self) -> Location | None:
        """Where the line is: now, or else where it was; None where that is not known."""
        return self.after or self.before

    @property
    def growth_nbytes(self) -> int:
        """Bytes that it keeps more in device memory; negative for fewer."""
        return self.kept_after_nbytes - self.kept_before_nbytes

    @property
    def host_growth_nbytes(self) -> int:
        """Bytes that it keeps more in host memory; negative for fewer."""
        return self.host_after_nbytes - self.host_before_nbytes

    @property
    def peak_growth_nbytes(self) -> int:
        """Bytes that it has more of at the estimated peak; negative for fewer."""
        return self.peak_after_nbytes - self.peak_before_nbytes


@dataclass(frozen=True, slots=True, repr=False)
class CheckpointDifference(Shown):
    """A checkpoint that is on one side only, or that is worth something else.

    Attributes:
      before: the checkpoint earlier; None where it is new.
      after: the checkpoint now; None where it is gone.
      changes: what differs: `added` or `removed`, or some of `verdict`, `policy`, `prevent_cse`,
        `calls`, `trips`, `dropped` (the residual bytes that it drops) and `recompute`.
    """

    before: Checkpoint | None
    after: Checkpoint | None
    changes: tuple[str, ...]

    @property
    def either(self) -> Checkpoint:
        """The checkpoint now, or else as it was."""
        found = self.after or self.before
        assert found is not None
        return found


@dataclass(frozen=True, slots=True, repr=False)
class Difference(Result):
    """What two reports say differently.

    Kept bytes are compared exactly; peaks and recomputed FLOPs with a tolerance, as an estimate
    rounds. The same program further down in a file is no difference. Whether the later side is
    worse the peak decides: what is kept beyond it is told for information.

    Attributes:
      before: the earlier side.
      after: the later side.
      lines: the lines that differ in what they keep, and where the peak differs those that differ
        in what is live there; those that grow most first, those that shrink most last.
      checkpoints: the checkpoints that differ, in the order of the later program.
      inputs: the arguments and constants among the residuals that differ.
      found: findings that are new.
      gone: findings that are no more.
      same_lines: how many lines keep the same.
      notes: what else the sides differ in, such as flags of JAX and what their reports warn of.
      tolerance: peaks and recomputations that differ by no more than this share of the larger are
        the same.
    """

    before: DiffSide
    after: DiffSide
    lines: tuple[LineDifference, ...] = ()
    checkpoints: tuple[CheckpointDifference, ...] = ()
    inputs: tuple[ValueDifference, ...] = ()
    found: tuple[Finding, ...] = ()
    gone: tuple[Finding, ...] = ()
    same_lines: int = 0
    notes: tuple[str, ...] = ()
    tolerance: float = TOLERANCE

    def _headline(self) -> str:
        before, after = printable(self.before.label, 40), printable(self.after.label, 40)
        peak = self.peak_growth_nbytes
        return headline(
            type(self).__name__,
            self.after.target,
            [self.after.place.name],
            [
                f"{before} to {after}",
                "peak not compared" if peak is None else f"peak {signed_bytes(peak)}",
                f"kept {signed_bytes(self.kept_growth_nbytes)}",
                count_text(len(self.lines), "line"),
                count_text(len(self.checkpoints), "checkpoint"),
                count_text(len(self.found), "new finding") if self.found else "",
            ],
        )

    @property
    def kept_growth_nbytes(self) -> int:
        """Bytes of computed residuals in device memory that there are more; negative for fewer."""
        return self.after.totals.computed_nbytes - self.before.totals.computed_nbytes

    @property
    def peak_growth_nbytes(self) -> int | None:
        """Bytes that the peak is higher; None where the two are not known by the same means."""
        if self.before.peak_nbytes is None or self.after.peak_nbytes is None:
            return None
        if self.before.peak_by != self.after.peak_by:
            return None
        return self.after.peak_nbytes - self.before.peak_nbytes

    @property
    def recompute_growth_flops(self) -> int:
        """FLOPs that checkpoints add more; negative for fewer."""
        return self.after.recompute_flops - self.before.recompute_flops

    @property
    def differs_in_kept(self) -> bool:
        """Whether residual bytes differ: of a line, or of arguments and constants."""
        return bool(self.inputs) or any(
            line.growth_nbytes or line.host_growth_nbytes for line in self.lines
        )

    @property
    def differs_in_peak(self) -> bool:
        """Whether the peaks can be compared and differ by more than the tolerance."""
        if self.peak_growth_nbytes is None:
            return False
        return is_more_than(self.tolerance, self.before.peak_nbytes, self.after.peak_nbytes)

    @property
    def has_higher_peak(self) -> bool:
        """Whether the peaks can be compared, and the later one is higher beyond the tolerance."""
        return self.differs_in_peak and (self.peak_growth_nbytes or 0) > 0

    @property
    def differs_in_recompute(self) -> bool:
        """Whether the recomputed FLOPs differ by more than the tolerance, and not by a rounding."""
        before, after = self.before, self.after
        least = negligible_recompute(before.total_flops, after.total_flops)
        return abs(self.recompute_growth_flops) > least and is_more_than(
            self.tolerance, before.recompute_flops, after.recompute_flops
        )

    @property
    def is_same(self) -> bool:
        """Whether there is no difference."""
        return not (
            self.differs_in_kept
            or self.differs_in_peak
            or self.differs_in_recompute
            or self.checkpoints
            or self.found
            or self.gone
        )

    def print(self, *, all: bool = False) -> None:
        """Print the difference to stdout: a screen of it, or with `all` every line."""
        show(self, all=all)


def negligible_recompute(before: int, after: int) -> float:
    """Return by how many FLOPs recomputation may differ, given the FLOPs of both programs."""
    return NEGLIGIBLE_RECOMPUTE * max(before, after)


def is_more_than(tolerance: float, before: int | None, after: int | None) -> bool:
    """Return whether two figures differ by more than a share of the larger.

    A figure that is not known, None, differs from every one that is.
    """
    if before is None or after is None:
        return before is not after
    return abs(after - before) > tolerance * max(abs(before), abs(after))

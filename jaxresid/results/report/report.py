"""The value of `jaxresid report`."""

from __future__ import annotations

from dataclasses import dataclass

from jaxresid.base.option_types import GroupBy, PictureView, ReportView, ResidualKey
from jaxresid.base.text.units import format_bytes
from jaxresid.results.compiled import Compiled
from jaxresid.results.display import show, to_perfetto, to_pprof, to_svg
from jaxresid.results.headline import count_text, headline, peak_text
from jaxresid.results.report.checkpoint import Checkpoint, Finding
from jaxresid.results.report.cost import Phases
from jaxresid.results.report.gradients import Gradient
from jaxresid.results.report.lifetimes import Lifetimes, without_names
from jaxresid.results.report.modules import ModuleMemory
from jaxresid.results.report.next_step import NextStep
from jaxresid.results.report.offloading import Offloading
from jaxresid.results.report.peak import KeptBeyondPeak, Peak
from jaxresid.results.report.program_arrays import ProgramArray
from jaxresid.results.report.rows import ResidualGroups, grouped
from jaxresid.results.result import Result
from jaxresid.results.target import JaxInfo, Mesh, PlaceInfo, Target
from jaxresid.results.values import Residual, Totals, totals_of


@dataclass(frozen=True, slots=True, repr=False)
class Report(Result):
    """The residuals that a function's backward pass keeps, their cost, and verdicts on checkpoints.

    Attributes:
      target: what was reported on.
      jax: the JAX that traced.
      place: the place that the figures are for.
      residuals: what is kept, in the order of the leaves that `jax.vjp` returns.
      cost: the work of the forward pass, the backward pass and the recomputation.
      peak: the estimate of the peak; None on a CPU, whose compiler is asked instead.
      checkpoints: the checkpoints in the source, each with its verdict.
      warnings: what was assumed, and what may be wrong.
      mesh: the devices that the program is split over; None: one device.
      offloading: the bytes in host memory; None where nothing is or could be there.
      findings: what else was found; that about one checkpoint is in the checkpoint.
      compiled: the figures of XLA at that place; empty if it was not asked.
      next_step: the one thing to do next; None in a report that was made in parts.
      modules: the bytes by module, each before those in it, the biggest first; what is in no module
        is last.
      beyond_peak: why more is kept than the peak; None where it is not more.
      lifetimes: from when until when each value is live, where that was asked for: in the program,
        then without each checkpoint for which that program can be made.
      arguments: what goes into a program that takes no gradient, and has no residuals.
      outputs: what comes out of it.
      gradients: the gradients that a program takes, in its order; of a loss none, as it is one.
    """

    target: Target
    jax: JaxInfo
    place: PlaceInfo
    residuals: tuple[Residual, ...]
    cost: Phases
    peak: Peak | None
    checkpoints: tuple[Checkpoint, ...] = ()
    warnings: tuple[str, ...] = ()
    mesh: Mesh | None = None
    offloading: Offloading | None = None
    findings: tuple[Finding, ...] = ()
    compiled: tuple[Compiled, ...] = ()
    next_step: NextStep | None = None
    modules: tuple[ModuleMemory, ...] = ()
    beyond_peak: KeptBeyondPeak | None = None
    lifetimes: tuple[Lifetimes, ...] = ()
    arguments: tuple[ProgramArray, ...] = ()
    outputs: tuple[ProgramArray, ...] = ()
    gradients: tuple[Gradient, ...] = ()

    def _headline(self) -> str:
        peak = peak_text(None)
        if self.peak is not None:
            peak = peak_text(self.peak.nbytes, self.peak.interval)
        elif self.compiled:
            peak = peak_text(self.compiled[0].peak_nbytes, by=" by XLA")
        kept = count_text(sum(r.origin.kind == "computed" for r in self.residuals), "residual")
        asked = [f"{format_bytes(self.totals.computed_nbytes)} kept in {kept}"]
        asked.append(count_text(len(self.checkpoints), "checkpoint"))
        return headline(
            "Report",
            self.target,
            [self.place.name],
            [
                peak,
                *(asked if self.target.has_gradient else ["no gradient"]),
                count_text(len(self.findings), "finding") if self.findings else "",
            ],
        )

    @property
    def words(self) -> tuple[str, ...]:
        """The words of the command line that ask about the same, as `NextStep` has them."""
        return () if self.next_step is None else self.next_step.words

    @property
    def totals(self) -> Totals:
        """The bytes of the residuals by kind."""
        return totals_of(self.residuals)

    def without(self, checkpoint: Checkpoint) -> Lifetimes | None:
        """Return the lifetimes without one of its checkpoints; None where there are none.

        Args:
          checkpoint: the checkpoint.
        """
        names = dict(zip(map(id, self.checkpoints), without_names(self.checkpoints), strict=True))
        name = names.get(id(checkpoint))
        return next((each for each in self.lifetimes if each.name == name), None)

    def group_by(self, *by: ResidualKey, all: bool = False) -> ResidualGroups:
        """Return the residuals summed by what they have in common, biggest first.

        Repeated layers are one module and one argument: `layers/*/attn`.

        Args:
          by: one or more of `line`, `file`, `function`, `module`, `name`, `primitive`, `dtype`,
            `shape`, `memory`, `kind`, `argument`, `phase`.
          all: whether arguments, constants and literals count as well, which are in memory anyway.

        Raises:
          InputsError: there is no such key, or none at all.
        """
        return grouped(self, by, all=all)

    def to_svg(self, view: PictureView = "timeline") -> str:
        """Return a picture as SVG: a file, or part of a page, without scripts.

        Args:
          view: `timeline`: the bytes that are live over the program; with `lifetimes` stacked by
            what they are. `icicle`: what is kept, by module, function, line and value.

        Raises:
          ValueError: there is no such view, no estimate of the peak, or nothing is kept.
        """
        return to_svg(self, view=view)

    def to_pprof(self) -> bytes:
        """Return kept bytes, bytes at the peak and recomputed FLOPs by stacks, as a pprof profile.

        Raises:
          ValueError: there is an estimate of the peak and the report has no `lifetimes`.
        """
        return to_pprof(self)

    def to_perfetto(self) -> bytes:
        """Return when each value is live as a trace for ui.perfetto.dev.

        Raises:
          ValueError: the report has no `lifetimes`.
        """
        return to_perfetto(self)

    def print(
        self,
        *,
        view: ReportView | None = None,
        verbose: bool = False,
        group_by: GroupBy | None = None,
        top: int | None = None,
        all: bool = False,
    ) -> None:
        """Print the text report to stdout; the options are those of `jaxresid report`.

        Args:
          view: the one thing to show in full; None: the overview.
          verbose: show everything.
          group_by: what to add residuals up by; with the view `residuals`, or verbose.
          top: the greatest number of rows of residuals, 20 where it is not given; likewise.
          all: show every row, arguments and literals too; likewise.

        Raises:
          ValueError: there is no such view or grouping, or the residuals are not shown.
        """
        show(self, view=view, verbose=verbose, group_by=group_by, top=top, all=all)

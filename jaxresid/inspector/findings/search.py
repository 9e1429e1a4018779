"""What the module of a finding gives to the registry, and what its search is given."""

# The members of protocols are described where they are defined.

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar

from jaxresid import jax_compat
from jaxresid.base.thresholds import WORTH_SAYING
from jaxresid.inspector.holes.holes import Holes
from jaxresid.inspector.jaxpr.levels import Levels
from jaxresid.inspector.jaxpr.nesting import eqns_in
from jaxresid.inspector.memory.lowered import Lowered
from jaxresid.inspector.memory.profile import Profile
from jaxresid.inspector.program.build import Program
from jaxresid.inspector.program.donation import MissingDonation
from jaxresid.inspector.program.ops import Op
from jaxresid.inspector.trace.function import Trace
from jaxresid.inspector.trace.step import StepTrace
from jaxresid.inspector.trace.traced import Traced
from jaxresid.inspector.variants.rewrites.effects import Figures, Rewrites
from jaxresid.inspector.variants.rewrites.retraced import Retraced
from jaxresid.jax_compat.jaxpr_types import Eqn, Jaxpr
from jaxresid.results import CompiledChange, Interval, LiveValue, Peak, Report, Source

T = TypeVar("T")
# Where a report tells of a finding: before the proposals, among them, or after them.
Part = Literal["code", "proposal", "arguments"]


class SearchedSubject(Protocol):
    """What findings ask of a subject; see `subject.base.Subject`."""

    @property
    def fun(self) -> Callable[..., Any]: ...
    @property
    def trace(self) -> Traced: ...
    @property
    def step(self) -> StepTrace | None: ...
    @property
    def holes(self) -> Holes[Any]: ...
    @property
    def program(self) -> Program: ...
    @property
    def profile(self) -> Profile: ...
    @property
    def lowered(self) -> Lowered: ...
    @property
    def peak(self) -> Peak | None: ...
    @property
    def live(self) -> tuple[LiveValue, ...]: ...
    @property
    def temporaries(self) -> tuple[tuple[LiveValue, Op], ...]: ...
    @property
    def rewrites(self) -> Rewrites | None: ...
    @property
    def missing_donation(self) -> MissingDonation | None: ...
    @property
    def split_again(self) -> Callable[[Trace], tuple[Trace, str | None]] | None: ...

    def retraced(self, changing: Callable[[], AbstractContextManager[object]]) -> Retraced: ...
    def interval(self, nbytes: int, program: Program) -> Interval | None: ...


class HeldSite(Protocol):
    """What a rewrite is of: the eqns that hold one another, down to it."""

    @property
    def path(self) -> tuple[Eqn, ...]: ...


SiteT = TypeVar("SiteT", bound=HeldSite)


@dataclass(frozen=True, slots=True, eq=False)
class FindingContext:
    """What findings are looked for in.

    Attributes:
      report: the report of the subject, without these findings.
      donating: what a compiler says of the missing donation; None where it was not asked.
    """

    subject: SearchedSubject
    report: Report
    donating: CompiledChange | None = None

    @property
    def levels(self) -> Levels:
        """The descent into the jaxprs of the subject."""
        return self.subject.trace.levels

    @property
    def has_peak(self) -> bool:
        """Whether the peak is estimated."""
        return self.report.peak is not None

    @property
    def is_on_one_device(self) -> bool:
        """Whether the peak is estimated, and not split over a mesh."""
        return self.has_peak and self.report.mesh is None

    @property
    def peak_nbytes(self) -> int:
        """The estimated peak; see `has_peak`."""
        assert self.report.peak is not None
        return self.report.peak.nbytes

    @property
    def least_nbytes(self) -> float:
        """The bytes that a change has to take off the peak to be told of."""
        return WORTH_SAYING * self.peak_nbytes

    @property
    def jaxprs(self) -> tuple[Jaxpr, ...]:
        """The open jaxprs of the subject, as they were traced."""
        return tuple(top.jaxpr for top in self.subject.trace.tops)

    def sites_by_line(self, jaxpr: Jaxpr, sites: Iterable[SiteT]) -> dict[Source, list[SiteT]]:
        """Return sites in an open jaxpr by the lines that they come from."""
        by_line: dict[Source, list[SiteT]] = {}
        for site in sites:
            by_line.setdefault(self.levels.source_below(jaxpr, site.path), []).append(site)
        return by_line

    def lower_peak(self, rewrites: Rewrites, number: int, jaxpr: Jaxpr) -> Figures | None:
        """Return the figures of a rewrite; None where it takes too little off the peak, or fails.

        Args:
          rewrites: what is differentiated.
          number: the number of what is rewritten among that.
          jaxpr: the rewritten open jaxpr.
        """
        figures = rewrites.figures(number, jaxpr)
        if figures is None or self.peak_nbytes - figures.peak_nbytes < self.least_nbytes:
            return None
        return figures


def is_on_one_device(context: FindingContext) -> bool:
    """Return whether the peak is estimated, and not split over a mesh."""
    return context.is_on_one_device


def holds_loop(context: FindingContext) -> bool:
    """Return whether a program on one device holds a scan."""
    return context.is_on_one_device and any(
        jax_compat.primitive_name(eqn) == "scan" for j in context.jaxprs for eqn in eqns_in(j)
    )


def holds_checkpoint(context: FindingContext) -> bool:
    """Return whether a program on one device holds a checkpoint."""
    return context.is_on_one_device and context.subject.trace.has_checkpoints


@dataclass(frozen=True, slots=True)
class FindingSearch(Generic[T]):
    """The search for a finding, which its module has as `SEARCH`.

    Attributes:
      names: the names of the findings.
      part: where a report tells of them.
      rank: the place among the searches of that part.
      run: yields the findings, or the proposals.
      applies: whether the search has any sense; quick.
    """

    names: Sequence[str]
    part: Part
    rank: int
    run: Callable[[FindingContext], Iterator[T]]
    applies: Callable[[FindingContext], bool] = lambda context: True

"""What there is to ask of a subject, and its inspection."""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from jaxresid import jax_compat
from jaxresid.base.crashes import Crash, crash_warnings
from jaxresid.base.errors import InputsError, RetraceError
from jaxresid.inspector.checkpoints.evaluate import evaluate_checkpoints
from jaxresid.inspector.checkpoints.judging import EvaluatedCheckpoints, JudgedCheckpoint
from jaxresid.inspector.findings.proposals import WORTH_SAYING, Proposal
from jaxresid.inspector.holes.holes import Holes
from jaxresid.inspector.jaxpr.bindings import intercept_bind, strip_trace_context
from jaxresid.inspector.jaxpr.frames import Frames
from jaxresid.inspector.memory.compilers import has_estimate, place_info, profile_of
from jaxresid.inspector.memory.intervals import interval_of_program, kind_of
from jaxresid.inspector.memory.lifetimes import lifetimes
from jaxresid.inspector.memory.lowered import Lowered, lower
from jaxresid.inspector.memory.peak import EstimatedPeak, OpSources, peak
from jaxresid.inspector.memory.profile import Profile
from jaxresid.inspector.program.build import Program
from jaxresid.inspector.program.donation import MissingDonation, missing_donation
from jaxresid.inspector.program.ops import Op
from jaxresid.inspector.program.program_arrays import ProgramArrays, program_arrays
from jaxresid.inspector.residuals.listing import listed
from jaxresid.inspector.residuals.step import Gradients, gradients
from jaxresid.inspector.trace import meshes
from jaxresid.inspector.trace.function import Trace
from jaxresid.inspector.trace.retracing import retracing
from jaxresid.inspector.trace.step import StepTrace
from jaxresid.inspector.trace.taken_gradients import in_words
from jaxresid.inspector.trace.traced import Traced
from jaxresid.inspector.variants.checkpoints import CheckpointVariants
from jaxresid.inspector.variants.rewrites.effects import (
    Rewrites,
    WholeRewrites,
    figures_of,
)
from jaxresid.inspector.variants.rewrites.retraced import Retraced
from jaxresid.results import (
    CompiledChange,
    Finding,
    Interval,
    JaxInfo,
    Lifetimes,
    LiveValue,
    Mesh,
    Peak,
    PlaceInfo,
    Report,
    Residual,
    Split,
    Target,
)
from jaxresid.xla.places import Place

if TYPE_CHECKING:
    from jaxresid.xla.processes.cache import CompileCache

T = TypeVar("T")


_UNTOLD = (
    "what a gradient keeps is not known, as its backward pass runs apart from its forward pass"
)


@dataclass(frozen=True)
class Subject:
    """A loss or a program as it was traced: what a report is made of, and its variants.

    Attributes:
      fun: the function.
      name: what it is called in a report.
      holes: what it differentiates, and the program around that.
      place: the place that its figures are for.
      warnings: what is to be said of it.
      assumes_gpu: whether it was traced as on a GPU that is not here.
      split_again: returns a variant of its trace with the residuals split as a compiler says, or
        the reason why it does not; None where none is asked.
    """

    fun: Callable[..., Any]
    name: str
    holes: Holes[Any]
    place: Place
    warnings: tuple[str, ...]
    assumes_gpu: bool = False
    split_again: Callable[[Trace], tuple[Trace, str | None]] | None = None

    @property
    def trace(self) -> Traced:
        """Its trace."""
        traced: Traced = self.holes.traced
        return traced

    @property
    def step(self) -> StepTrace | None:
        """Its trace as that of a program as it is; None of a loss."""
        return self.holes.as_step(self.holes.traced)

    def tracing(self) -> contextlib.AbstractContextManager[None]:
        """Return the context to trace it in again, or parts of it."""
        return jax_compat.assuming_gpu() if self.assumes_gpu else contextlib.nullcontext()

    @property
    def is_dead(self) -> bool:
        """Whether it is a training step that does nothing with its gradients.

        It has no backward pass then, and nothing is said of what it takes or of its checkpoints.
        """
        return self.step is not None and self.step.is_dead

    @functools.cached_property
    def arrays(self) -> ProgramArrays:
        """What goes into a program without a gradient, and what comes out; of others nothing."""
        step = self.step
        if step is None or step.holds_gradient:
            return (), ()
        return program_arrays(step, self.program)

    @property
    def passes(self) -> int:
        """How often its trace runs one after the other: once for each microbatch."""
        return 1

    @functools.cached_property
    def profile(self) -> Profile:
        """The compiler whose rules its peak is estimated by."""
        return profile_of(self.place)

    @property
    def place_info(self) -> PlaceInfo:
        """The place that its figures are for, as a report shows it."""
        return self.info_of(self.place)

    def info_of(self, place: Place) -> PlaceInfo:
        """Return a place as results about the program show it."""
        if not has_estimate(place):
            return place_info(place, self.mesh)
        return place_info(place, self.mesh, kind_of(self.program).gradients)

    @property
    def frames(self) -> Frames:
        """The reader of the tracebacks of its eqns."""
        return self.trace.frames

    @property
    def mesh(self) -> Mesh | None:
        """The mesh that it is split over, and whether a compiler said how; None without one."""
        found, loss = meshes.mesh_for_report(self.trace.arguments.mesh), self.holes.alone
        if found is None or loss is None or loss.pieces is None:
            return found
        return replace(found, source="compiler")

    @functools.cached_property
    def jax(self) -> JaxInfo:
        """The installed JAX: its version, flags and compilers."""
        return JaxInfo(jax_compat.jax_version(), jax_compat.flags(), jax_compat.compilers())

    def split_by_compiler(self, cache: CompileCache | None) -> Subject:
        """Return the subject with its residuals split as a compiler says, where that is asked.

        It is of a loss, where the axes of its mesh are not explicit.

        Args:
          cache: the cache of what is compiled for that.
        """
        mesh, loss = self.mesh, self.holes.alone
        if loss is None or mesh is None or mesh.mode != "auto" or mesh.size == 1:
            return self
        split = functools.partial(meshes.split_by_compiler, cache=cache)
        traced, reason = split(loss)
        more = () if reason is None else (reason,)
        return replace(
            self,
            holes=self.holes.of(traced),
            split_again=split,
            warnings=(*self.warnings, *more),
        )

    @functools.cached_property
    def peak(self) -> Peak | None:
        """The estimated peak, with what is live there; None where peaks are not estimated."""
        if not has_estimate(self.place):
            return None
        found = self._estimated.peak
        around = self.interval(found.nbytes, self.program)
        if around is None:
            return found
        return replace(found, low_nbytes=around.low_nbytes, high_nbytes=around.high_nbytes)

    @property
    def live(self) -> tuple[LiveValue, ...]:
        """What is live at the estimated peak, one by one; empty where peaks are not estimated."""
        return self._estimated.live if has_estimate(self.place) else ()

    @functools.cached_property
    def _estimated(self) -> EstimatedPeak:
        return peak(self.lowered, OpSources(self.trace))

    @functools.cached_property
    def lowered(self) -> Lowered:
        """The program as the compiler of the place runs it."""
        return lower(self.program, self.profile)

    @property
    def temporaries(self) -> tuple[tuple[LiveValue, Op], ...]:
        """Each temporary at the estimated peak, with the op that makes it."""
        return self._estimated.temporaries

    @functools.cached_property
    def missing_donation(self) -> MissingDonation | None:
        """The arguments that a program returns updated and does not donate, if these matter."""
        step = self.step
        if step is None or step.is_dead:
            return None
        least = 0 if self.peak is None else WORTH_SAYING * self.peak.nbytes
        return missing_donation(step, self.program, least)

    def retraced(
        self, changing: Callable[[], contextlib.AbstractContextManager[object]]
    ) -> Retraced:
        """Return it traced again in a context that changes what its code calls.

        Args:
          changing: returns the context.

        Raises:
          RetraceError: it cannot be traced so.
        """

        def in_context(trace: Callable[[], T]) -> Callable[[], T]:
            @functools.cache
            def traced() -> T:
                # In a context of its own, or a function that is jitted would not be traced again.
                with retracing("a changed program"), intercept_bind({}), changing():
                    return trace()

            return traced

        def primal_in_context(primal: Callable[[], Any]) -> Callable[[], Any]:
            def traced() -> Any:
                made = primal()
                strip_trace_context(jax_compat.open_jaxpr(made.jaxpr))
                return made

            return in_context(traced)

        leaves = self.trace.arguments.leaves
        subject = in_context(lambda: self.traced_with(leaves))()
        trace = subject.trace.tracing_in(primal_in_context)
        for top in trace.tops:
            strip_trace_context(top.jaxpr)
        subject = replace(subject, holes=subject.holes.of(trace))
        program = subject.program
        figures = figures_of(self.holes, trace, program, self.profile)
        return Retraced(
            trace,
            program,
            figures,
            self.interval(figures.peak_nbytes, program),
            subject.temporaries,
        )

    def interval(self, nbytes: int, program: Program) -> Interval | None:
        """Return the interval around the estimated peak of the program or of a variant."""
        if not has_estimate(self.place):
            return None
        return interval_of_program(nbytes, program, self.place.kind, self.jax.compilers)

    def lifetimes(self) -> Lifetimes:
        """Return the lifetimes of its values, as they are estimated."""
        return self.lifetimes_of(self.program, self.trace)

    def lifetimes_of(self, program: Program, trace: Traced, name: str = "") -> Lifetimes:
        """Return the lifetimes of the values of a variant, as they are estimated.

        Args:
          program: its program.
          trace: its trace.
          name: what it is called; see `Lifetimes`.
        """
        found = lifetimes(lower(program, self.profile), OpSources(trace), name=name)
        around = self.interval(found.nbytes, program)
        if around is None:
            return found
        return replace(found, low_nbytes=around.low_nbytes, high_nbytes=around.high_nbytes)

    @functools.cached_property
    def program(self) -> Program:
        """The whole program: a function's value with its gradients, or the step."""
        return self.holes.program(self.trace)

    @functools.cached_property
    def residuals(self) -> tuple[Residual, ...]:
        """The residuals; of a function in the order of the vjp function's leaves."""
        return self.holes.residuals(self.trace, self.program)

    @functools.cached_property
    def gradients(self) -> Gradients:
        """The gradients that a program takes, and those inside of them; of a loss none."""
        return Gradients() if self.step is None else gradients(self.step, self.program)

    @functools.cached_property
    def rewrites(self) -> Rewrites | None:
        """What it differentiates, or all of it, to be rewritten; None where that cannot be told."""
        if not self.target.has_gradient:
            return WholeRewrites(self.holes, self.profile)
        try:
            return Rewrites(self.holes, self.profile)
        except RetraceError:
            return None

    @functools.cached_property
    def target(self) -> Target:
        """The name of the function, what is differentiated, and whether it is a training step."""
        return self.holes.target(self.name)

    def evaluate_checkpoints(self) -> EvaluatedCheckpoints:
        """Return its checkpoints, judged, and the cost of its passes.

        Raises:
          InputsError: a policy fails or gives no answer.
        """
        if self.is_dead or not self.target.has_gradient:
            return EvaluatedCheckpoints((), self.holes.phases(self.trace))
        return evaluate_checkpoints(
            self.holes,
            self.profile,
            self.residuals,
            self.program,
            self.peak,
            why_unknown=_UNTOLD if self.gradients.untold else "",
        )

    def traced_with(self, leaves: Sequence[Any]) -> Subject:
        """Return it traced again with other leaves; see `Holes.with_leaves`."""
        return replace(self, holes=self.holes.with_leaves(leaves))

    def variants(self) -> CheckpointVariants:
        """Return its variants, made by changing its checkpoints.

        Raises:
          JaxresidError: it does nothing with its gradients, or what it differentiates cannot be
            told.
        """
        if self.is_dead:
            raise InputsError(dead_gradients(self.name))
        return CheckpointVariants(self.holes, self.profile, self.name)

    def split(self, report: Report, *, max_eqns: int, depth: int) -> Split:
        """Return its forward and backward pass, listed.

        Args:
          report: its report.
          max_eqns: show at most this many eqns of each jaxpr.
          depth: show nested jaxprs down to this depth; 0 folds them all.

        Raises:
          InputsError: it is a program, which has no two passes, or has them in one jaxpr.
        """
        if self.holes.alone is not None:
            return listed(self.holes.alone, report, max_eqns=max_eqns, depth=depth)
        if self.target.gradients:
            raise InputsError(
                f"{self.name} is a program with both passes of a gradient in it"
                f" ({in_words(self.target.gradients)}); split the function that is differentiated"
                " there (a report shows what it keeps), or use mode loss to differentiate the"
                " program itself"
            )
        raise InputsError(without_gradient(self.target))


@dataclass(frozen=True, slots=True)
class Inspection:
    """A report together with the subject that it was made from.

    Attributes:
      subject: the subject.
      report: the report.
      judged: the checkpoints of the report, with what their verdicts are made of.
      host_findings: the findings about host memory.
      proposals: the findings whose worth is that of a rewrite; None before they are looked for.
      donating: what the compiler says of `Subject.missing_donation`; None where it was not asked.
      crashes: the searches that an error of our own ended.
    """

    subject: Subject
    report: Report
    judged: tuple[JudgedCheckpoint, ...] = ()
    host_findings: tuple[Finding, ...] = ()
    proposals: tuple[Proposal, ...] | None = None
    donating: CompiledChange | None = None
    crashes: tuple[Crash, ...] = ()

    @property
    def trace(self) -> Traced:
        """The trace of the subject, with its jaxprs."""
        return self.subject.trace

    def with_crashes(self, crashes: Iterable[Crash]) -> Inspection:
        """Return the inspection with more crashes, and a report that warns of all."""
        every = tuple(dict.fromkeys((*self.crashes, *crashes)))
        if every == self.crashes:
            return self
        earlier = crash_warnings(self.crashes)
        warnings = [w for w in self.report.warnings if w not in earlier]
        report = replace(self.report, warnings=(*warnings, *crash_warnings(every)))
        return replace(self, report=report, crashes=every)


@contextlib.contextmanager
def gc_paused() -> Iterator[None]:
    """Pause the garbage collector.

    With 48 layers it took two thirds of the time, going again and again over hundreds of thousands
    of objects that all stay.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def without_gradient(target: Target) -> str:
    """Return why there is no pass to split and no checkpoint to compare, without a full stop."""
    more = "; use --mode loss to ask about its gradient" if target.other_mode == "loss" else ""
    return (
        f"{target.name} takes no gradient: no backward pass keeps residuals and no checkpoint has"
        f" an effect{more}"
    )


def dead_gradients(name: str) -> str:
    """Return the message for a function that does nothing with its gradients."""
    return (
        f"nothing that {name} returns or changes depends on its gradients, so compilers remove the"
        " whole backward pass; also return the updated parameters and optimizer state (or the"
        " gradients), or use mode loss to differentiate it as it is"
    )

"""What there is to ask of a subject, and its inspection."""

from __future__ import annotations

import contextlib
import functools
import gc
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from jaxresid import jax_compat
from jaxresid.crashes import Crash, crash_warnings
from jaxresid.errors import InputsError, RetraceError
from jaxresid.inspector.checkpoints.batched import may_be_batched
from jaxresid.inspector.checkpoints.evaluate import evaluate_checkpoints
from jaxresid.inspector.checkpoints.hidden_names import may_hide_names
from jaxresid.inspector.checkpoints.judging import EvaluatedCheckpoints, JudgedCheckpoint
from jaxresid.inspector.findings.attention import attention_at_peak
from jaxresid.inspector.findings.collect import Search
from jaxresid.inspector.findings.defeated_policies import defeated_policies
from jaxresid.inspector.findings.derived_values import derived_values
from jaxresid.inspector.findings.gathered_weights import gathered_weights
from jaxresid.inspector.findings.hidden_names import names_hidden_by_rules
from jaxresid.inspector.findings.jacobians import NAME as COSTLY_MODE
from jaxresid.inspector.findings.logits import logits_at_peak
from jaxresid.inspector.findings.loop_excess import holds_loop, loop_excess
from jaxresid.inspector.findings.one_hots import NAME as ONE_HOT_MATMUL
from jaxresid.inspector.findings.one_hots import one_hots_at_peak
from jaxresid.inspector.findings.proposals import Changed, Proposal
from jaxresid.inspector.findings.vmaps import NAME as VMAP_TOO_WIDE
from jaxresid.inspector.findings.vmaps import least_nbytes, mapped_nbytes, wide_vmaps
from jaxresid.inspector.findings.widening import holds_cast, widened_residuals
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
from jaxresid.inspector.program.program_arrays import ProgramArrays
from jaxresid.inspector.residuals.step import Gradients
from jaxresid.inspector.trace import meshes
from jaxresid.inspector.trace.retracing import retracing
from jaxresid.inspector.trace.traced import Traced
from jaxresid.inspector.variants.checkpoints import CheckpointVariants
from jaxresid.inspector.variants.rewrites.effects import (
    Rewrites,
    WholeRewrites,
    figures_of,
)
from jaxresid.inspector.variants.rewrites.retraced import Retraced
from jaxresid.model import (
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
class Subject(ABC):
    """A function or training step as it was traced: what a report is made of, and its variants.

    Attributes:
      fun: the function.
      name: what it is called in a report.
      trace: its trace.
      place: the place that its figures are for.
      warnings: what is to be said of it.
      assumes_gpu: whether it was traced as on a GPU that is not here.
    """

    fun: Callable[..., Any]
    name: str
    trace: Traced
    place: Place
    warnings: tuple[str, ...]
    assumes_gpu: bool = False

    def tracing(self) -> contextlib.AbstractContextManager[None]:
        """Return the context to trace it in again, or parts of it."""
        return jax_compat.assuming_gpu() if self.assumes_gpu else contextlib.nullcontext()

    @property
    def is_dead(self) -> bool:
        """Whether it is a training step that does nothing with its gradients.

        It has no backward pass then, and nothing is said of what it takes or of its checkpoints.
        """
        return False

    @property
    def arrays(self) -> ProgramArrays:
        """What goes into a program without a gradient, and what comes out; of others nothing."""
        return (), ()

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
        """The mesh that it is split over; None: it is of one device."""
        return meshes.mesh_for_report(self.trace.arguments.mesh)

    @functools.cached_property
    def jax(self) -> JaxInfo:
        """The installed JAX: its version, flags and compilers."""
        return JaxInfo(jax_compat.jax_version(), jax_compat.flags(), jax_compat.compilers())

    def split_by_compiler(self, cache: CompileCache | None) -> Subject:
        """Return the subject with its residuals split as a compiler says, where that is asked.

        It is where the axes of its mesh are not explicit.

        Args:
          cache: the cache of what is compiled for that.
        """
        return self

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
    def donating(self) -> Changed | None:
        """The program with what it could give away donated; None where there is nothing."""
        return None

    def proposing(self, report: Report) -> Iterator[Search[Proposal]]:
        """Yield the searches for findings whose worth is that of a rewrite.

        On a mesh there are none but those of what is gathered inside `shard_map`, whose types are
        those of one device: how a compiler splits what is rewritten is not known.

        Args:
          report: its report.
        """
        levels, profile = self.trace.levels, self.profile

        def rewrites() -> Rewrites | None:
            return self.rewrites

        yield (
            "logits-at-peak",
            lambda: logits_at_peak(report, self.live, levels, profile, rewrites),
        )
        if report.peak is not None:
            yield "gathered-weights-kept", lambda: gathered_weights(report, profile, rewrites)
        if report.peak is None or report.mesh is not None:
            return
        jaxprs = [top.jaxpr for top in self.trace.tops]

        def rewriting(search: Callable[[Rewrites], Iterator[Proposal]]) -> Iterator[Proposal]:
            made = self.rewrites
            return iter(()) if made is None else search(made)

        if holds_loop(*jaxprs):
            yield (
                "needless-loop-state",
                lambda: rewriting(lambda made: loop_excess(report, levels, profile, made)),
            )
            yield (
                "derived-residual",
                lambda: rewriting(lambda made: derived_values(report, levels.frames, made)),
            )
        if mapped_nbytes(self._estimated.temporaries) >= least_nbytes(report, profile):
            yield (
                f"{VMAP_TOO_WIDE} and {COSTLY_MODE}",
                lambda: wide_vmaps(
                    report,
                    profile,
                    levels.frames,
                    lambda: self.holes.cost(self.trace),
                    self.retraced,
                ),
            )
        yield (
            ONE_HOT_MATMUL,
            lambda: one_hots_at_peak(report, self.live, levels, jaxprs, rewrites),
        )
        if holds_cast(*jaxprs):
            yield (
                "widened-residual",
                lambda: rewriting(lambda made: widened_residuals(report, levels, made)),
            )
        yield (
            "attention-scores-at-peak",
            lambda: attention_at_peak(report, self.live, levels, jaxprs, profile, rewrites),
        )
        if self.trace.has_checkpoints and may_be_batched(jaxprs):
            run_again = functools.partial(self.trace.run_again, self.fun)
            yield (
                "defeated-policy",
                lambda: rewriting(lambda made: defeated_policies(report, levels, made, run_again)),
            )
        if self.trace.has_checkpoints and may_hide_names(self.trace.written):
            yield (
                "name-outside-custom-vjp-forward",
                lambda: rewriting(lambda made: names_hidden_by_rules(report, levels, made)),
            )

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
        subject = replace(subject, trace=trace)
        program = subject.program
        figures = figures_of(self.holes, trace, program, self.profile)
        return Retraced(
            trace,
            program,
            figures,
            self.interval(figures.peak_nbytes, program),
            subject._estimated.temporaries,
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

    @property
    def gradients(self) -> Gradients:
        """The gradients that a program takes; of a loss none."""
        return Gradients()

    @property
    @abstractmethod
    def holes(self) -> Holes[Any]:
        """What is differentiated, and the program around it."""

    @functools.cached_property
    def rewrites(self) -> Rewrites | None:
        """What it differentiates, or all of it, to be rewritten; None where that cannot be told."""
        if not self.target.has_gradient:
            return WholeRewrites(self.holes, self.profile)
        try:
            return Rewrites(self.holes, self.profile)
        except RetraceError:
            return None

    @property
    @abstractmethod
    def target(self) -> Target:
        """The name of the function, what is differentiated, and whether it is a training step."""

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

    @abstractmethod
    def traced_with(self, leaves: Sequence[Any]) -> Subject:
        """Return it traced again with other leaves in the place of its arguments'.

        Args:
          leaves: as many as `trace.arguments` has.

        Raises:
          Exception: whatever the function raises while JAX traces it.
        """

    def variants(self) -> CheckpointVariants:
        """Return its variants, made by changing its checkpoints.

        Raises:
          JaxresidError: it does nothing with its gradients, or what it differentiates cannot be
            told.
        """
        if self.is_dead:
            raise InputsError(dead_gradients(self.name))
        return CheckpointVariants(self.holes, self.profile, self.name)

    @abstractmethod
    def about_code(self, report: Report) -> Iterator[Search[Finding]]:
        """Yield the searches for findings about its code, to be told of before the proposals.

        What is about host memory, or about one of its checkpoints, is not in it.

        Args:
          report: its report.
        """

    def about_arguments(
        self, report: Report, donating: CompiledChange | None
    ) -> Iterator[Search[Finding]]:
        """Yield the searches for findings about its arguments, to be told of after the proposals.

        Args:
          report: its report.
          donating: what the compiler says of `donating`; None where it was not asked.
        """
        yield from ()

    @abstractmethod
    def split(self, report: Report, *, max_eqns: int, depth: int) -> Split:
        """Return its forward and backward pass, listed.

        Args:
          report: its report.
          max_eqns: show at most this many eqns of each jaxpr.
          depth: show nested jaxprs down to this depth; 0 folds them all.

        Raises:
          InputsError: it is a training step, or takes no gradient.
        """


@dataclass(frozen=True, slots=True)
class Inspection:
    """A report together with the subject that it was made from.

    Attributes:
      subject: the subject.
      report: the report.
      judged: the checkpoints of the report, with what their verdicts are made of.
      host_findings: the findings about host memory.
      proposals: the findings whose worth is that of a rewrite; None before they are looked for.
      donating: as `Subject.about_arguments` is given it.
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

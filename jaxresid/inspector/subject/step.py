"""A training step, which holds its own gradients."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jaxresid.errors import InputsError
from jaxresid.inspector.findings.collect import Search, searches_of_step
from jaxresid.inspector.findings.donation import (
    MISSING,
    UNUSABLE,
    missing_donation_findings,
    unusable_donation_findings,
)
from jaxresid.inspector.findings.proposals import (
    WORTH_SAYING,
    Changed,
    PeakEffect,
    with_compiled,
)
from jaxresid.inspector.findings.zero_gradients import NEEDLESS, needless_moments_findings
from jaxresid.inspector.holes.holes import ProgramHoles
from jaxresid.inspector.memory.lowered import lower
from jaxresid.inspector.memory.peak import peak_nbytes
from jaxresid.inspector.program.build import Program
from jaxresid.inspector.program.donation import MissingDonation, missing_donation
from jaxresid.inspector.program.program_arrays import ProgramArrays, program_arrays
from jaxresid.inspector.program.step_roles import PARAMETERS, is_training_step
from jaxresid.inspector.program.unusable_donation import unusable_donations
from jaxresid.inspector.program.zero_gradients import needless_moments
from jaxresid.inspector.residuals.step import Gradients, gradients
from jaxresid.inspector.subject.base import Subject, without_gradient
from jaxresid.inspector.trace import step as steps
from jaxresid.inspector.trace.derivatives import in_words, lines_of_gradients
from jaxresid.inspector.trace.step import StepTrace
from jaxresid.model import CompiledChange, Finding, Report, Split, Target


@dataclass(frozen=True)
class StepSubject(Subject):
    """A training step; see `Subject`."""

    trace: StepTrace

    @functools.cached_property
    def is_dead(self) -> bool:
        """Whether it does nothing with its gradients."""
        return steps.is_dead(self.trace)

    @functools.cached_property
    def holes(self) -> ProgramHoles:
        """What the program differentiates."""
        return ProgramHoles(self.fun, self.trace)

    @functools.cached_property
    def gradients(self) -> Gradients:
        """The gradients that it takes, and those inside of them."""
        return gradients(self.trace, self.program)

    @functools.cached_property
    def target(self) -> Target:
        """The name of the step, and what it takes gradients of, as far as that is known."""
        parameters = tuple(r.path or "" for r in self.program.inputs if r.kind == PARAMETERS)
        own = lines_of_gradients(self.trace.jaxpr, self.trace.frames)
        if not own:
            found = Target(self.name, parameters, "program")
            return replace(found, other_mode="loss") if self.trace.is_differentiable else found
        is_step = not self.is_dead and is_training_step(self.trace, self.program.inputs)
        return Target(self.name, parameters, "program", own, is_step)

    @functools.cached_property
    def arrays(self) -> ProgramArrays:
        """What goes into it and comes out of it, where it takes no gradient; else nothing."""
        return ((), ()) if self.trace.holds_gradient else program_arrays(self.trace, self.program)

    def traced_with(self, leaves: Sequence[Any]) -> StepSubject:
        """Return it traced again with other leaves; see `Subject.traced_with`."""
        call = replace(self.trace.arguments, leaves=tuple(leaves))
        primal = steps.step_primal(self.fun, call)
        return replace(self, trace=steps.step_trace(primal, call, self.trace.frames))

    @functools.cached_property
    def missing_donation(self) -> MissingDonation | None:
        """The arguments that it returns updated and does not donate, if these matter."""
        least = 0 if self.peak is None else WORTH_SAYING * self.peak.nbytes
        return missing_donation(self.trace, self.program, least)

    @property
    def donating(self) -> Changed | None:
        """The step with what it could give away donated; see `Subject.donating`."""
        found = None if self.is_dead else self.missing_donation
        return None if found is None else Changed(found.step, found.program)

    def about_code(self, report: Report) -> Iterator[Search[Finding]]:
        """Yield the searches for findings about its code; see `Subject.about_code`."""
        return searches_of_step(report, self.trace)

    def about_arguments(
        self, report: Report, donating: CompiledChange | None
    ) -> Iterator[Search[Finding]]:
        """Yield the searches for findings about its arguments; see `Subject.about_arguments`."""
        yield UNUSABLE, lambda: self._unusable_donation(report)
        yield MISSING, lambda: self._missing_donation(donating)
        yield NEEDLESS, self._needless_moments

    def _unusable_donation(self, report: Report) -> Iterator[Finding]:
        peak = next((c.peak_nbytes for c in report.compiled), None) or (
            None if self.peak is None else self.peak.nbytes
        )
        if peak is not None:
            unusable = unusable_donations(self.trace, self.program)
            yield from unusable_donation_findings(self.fun, self.trace, unusable, peak)

    def _needless_moments(self) -> Iterator[Finding]:
        if self.peak is None or self.is_dead:
            return
        found = needless_moments(self.trace, self.program)
        if found is None:
            return
        nbytes = peak_nbytes(lower(found.program, self.profile))
        around = self.interval(nbytes, found.program)
        effect = PeakEffect(self.peak.nbytes, nbytes, "estimate", around)
        yield from needless_moments_findings(self.fun, self.trace, found, effect)

    def _missing_donation(self, donating: CompiledChange | None) -> Iterator[Finding]:
        found = self.missing_donation
        if found is None:
            return
        effect = self._effect(found.program)
        if donating is not None and donating.verdict == "confirmed":
            before, after = donating.peak_before_nbytes, donating.peak_nbytes
            assert before is not None
            assert after is not None
            effect = PeakEffect(before, after, "xla")
        if effect is None:
            return
        for finding in missing_donation_findings(self.fun, self.trace, found, effect):
            yield finding if donating is None else with_compiled(finding, donating)

    def _effect(self, program: Program) -> PeakEffect | None:
        """Return what a program with the same kernels does to the estimated peak, if there is one.

        Args:
          program: the program, in which outputs take over other buffers.
        """
        if self.peak is None:
            return None
        nbytes = peak_nbytes(replace(self.lowered, program=program))
        return PeakEffect(self.peak.nbytes, nbytes, "estimate", self.interval(nbytes, program))

    def split(self, report: Report, *, max_eqns: int, depth: int) -> Split:
        """Refuse: a program has no two passes, or has them in one jaxpr.

        Raises:
          InputsError: always.
        """
        if self.target.gradients:
            raise InputsError(
                f"{self.name} is a program with both passes of a gradient in it"
                f" ({in_words(self.target.gradients)}); split the function that is differentiated"
                " there (a report shows what it keeps), or use mode loss to differentiate the"
                " program itself"
            )
        raise InputsError(without_gradient(self.target))

"""A training step, which holds its own gradients."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from jaxresid.errors import InputsError
from jaxresid.inspector.checkpoints.judging import EvaluatedCheckpoints
from jaxresid.inspector.checkpoints.step import evaluate_step_checkpoints
from jaxresid.inspector.cost.step import step_cost
from jaxresid.inspector.findings.collect import step_findings
from jaxresid.inspector.findings.logits import logits_of_step
from jaxresid.inspector.program.build import Program
from jaxresid.inspector.program.step import step_program
from jaxresid.inspector.residuals.step import step_residuals
from jaxresid.inspector.subject.base import Subject, dead_gradients
from jaxresid.inspector.trace import step as steps
from jaxresid.inspector.trace.step import StepTrace
from jaxresid.inspector.variants.step import StepVariants
from jaxresid.model import Finding, Report, Residual, Split, Target


@dataclass(frozen=True)
class StepSubject(Subject):
    """A training step; see `Subject`."""

    trace: StepTrace

    @functools.cached_property
    def is_dead(self) -> bool:
        """Whether it does nothing with its gradients."""
        return steps.is_dead(self.trace)

    @functools.cached_property
    def program(self) -> Program:
        """The program of the step."""
        return step_program(self.trace)

    @functools.cached_property
    def residuals(self) -> tuple[Residual, ...]:
        """The residuals of all its gradients, in program order."""
        return step_residuals(self.trace, self.program)

    @property
    def target(self) -> Target:
        """The name of the step, and what it takes gradients of, as far as that is known."""
        parameters = (r.path or "" for r in self.program.inputs if r.kind == "parameters")
        return Target(self.name, tuple(parameters), "step")

    def evaluate_checkpoints(self) -> EvaluatedCheckpoints:
        """Return its checkpoints, judged, and the cost of its passes; see `Subject`."""
        if self.is_dead:
            return EvaluatedCheckpoints((), step_cost(self.trace))
        return evaluate_step_checkpoints(
            self.fun, self.trace, self.profile, self.residuals, self.program, self.peak
        )

    def traced_with(self, leaves: Sequence[Any]) -> StepSubject:
        """Return it traced again with other leaves; see `Subject.traced_with`."""
        call = replace(self.trace.arguments, leaves=tuple(leaves))
        primal = steps.step_primal(self.fun, call)
        return replace(self, trace=steps.step_trace(primal, call, self.trace.frames))

    def variants(self) -> StepVariants:
        """Return its variants, made by tracing it again.

        Raises:
          InputsError: it does nothing with its gradients.
        """
        if self.is_dead:
            raise InputsError(dead_gradients(self.name))
        return StepVariants(self.fun, self.trace, self.profile)

    def findings(self, report: Report) -> tuple[Finding, ...]:
        """Return what else there is to say of it; widened residuals are not looked for."""
        logits = logits_of_step(report, self.live, self.fun, self.trace, self.profile)
        return (*step_findings(report, self.trace), *logits)

    def split(self, report: Report, *, max_eqns: int, depth: int) -> Split:
        """Refuse: both passes are in one jaxpr.

        Raises:
          InputsError: always.
        """
        raise InputsError(
            f"{self.name} is a training step, with both passes in one jaxpr; split the"
            " loss function that it differentiates instead (`jaxresid report` shows what the step"
            " keeps), or use mode function to differentiate the step itself"
        )

"""Judge each checkpoint of a training step.

This does what `checkpoints.function` does, for a jaxpr that holds both passes already: the step is
traced again without a checkpoint, see `removal`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from jaxresid.errors import JaxresidError
from jaxresid.inspector.checkpoints.alike import alike_step_checkpoints
from jaxresid.inspector.checkpoints.counterfactuals import Counterfactual
from jaxresid.inspector.checkpoints.judging import (
    TAGGED,
    Case,
    EvaluatedCheckpoints,
    JudgedCheckpoint,
    figures_of,
    judge_all,
)
from jaxresid.inspector.checkpoints.placement import step_shape
from jaxresid.inspector.checkpoints.removal import Removal, numbers_in, with_bodies
from jaxresid.inspector.checkpoints.sites import CheckpointSite, sites
from jaxresid.inspector.checkpoints.verdicts import ProgramFigures, unjudged
from jaxresid.inspector.cost.jaxpr_cost import jaxpr_cost
from jaxresid.inspector.cost.step import step_cost
from jaxresid.inspector.memory.peak import OpSources
from jaxresid.inspector.memory.profile import Profile
from jaxresid.inspector.program.build import Program, program_of_jaxpr
from jaxresid.inspector.program.ops import Op
from jaxresid.inspector.program.step import infer_phases, step_program
from jaxresid.inspector.residuals.step import step_kept_nbytes
from jaxresid.inspector.trace.step import StepTrace, step_primal, step_trace
from jaxresid.model import Peak, Phases, Residual


def evaluate_step_checkpoints(
    fun: Callable[..., Any],
    step: StepTrace,
    profile: Profile,
    residuals: tuple[Residual, ...],
    program_as_written: Program,
    estimate: Peak | None,
    *,
    why_unknown: str = "",
) -> EvaluatedCheckpoints:
    """Judge every checkpoint of a training step.

    Args:
      fun: the training step itself.
      step: its trace.
      profile: the memory profile that peaks are estimated with.
      residuals: the residuals of the step.
      program_as_written: its program.
      estimate: its estimated peak; None where peaks are not estimated.
      why_unknown: why no checkpoint can be judged; '' where they can.

    Returns:
      The checkpoints with their verdicts, and the cost of the passes.

    Raises:
      InputsError: a policy fails or gives no answer.
    """
    jaxpr, tagged = step.jaxpr, step_cost(step)
    if not step.holds_gradient or not step.has_checkpoints:
        return EvaluatedCheckpoints((), tagged)
    removal = Removal(lambda: _traced(fun, step), lambda again: (again.jaxpr,), step.frames)
    cost = jaxpr_cost(jaxpr, step.trips)
    found = sites(step.levels, step.tops[0], backward=True)
    if why_unknown:
        return _unknown(found, figures_of(cost, residuals, estimate), tagged, why_unknown)
    try:
        found, numbers = _numbered(step, found, removal)
    except JaxresidError as e:
        return _unknown(found, figures_of(cost, residuals, estimate), tagged, str(e))

    @functools.cache
    def named() -> Program:
        # As it is written: what a compiler then merges is for the verdict.
        inputs, outputs, sharding = (
            program_as_written.inputs,
            program_as_written.outputs,
            program_as_written.sharding,
        )
        return infer_phases(
            program_of_jaxpr(jaxpr, inputs, outputs, as_written=True, sharding=sharding)
        )

    @functools.cache
    def removed(gone: frozenset[CheckpointSite]) -> StepTrace:
        return removal.without({number for site in gone for number in numbers[site]})

    @functools.cache
    def numbered() -> Program:
        inputs, outputs = program_as_written.inputs, program_as_written.outputs
        return infer_phases(
            program_of_jaxpr(removal.numbered().jaxpr, inputs, outputs, as_written=True)
        )

    def without(site: CheckpointSite) -> Counterfactual:
        other = removed(frozenset([site]))
        program = step_program(other)
        kept, _ = step_kept_nbytes(other, program)
        return Counterfactual(kept, jaxpr_cost(other.jaxpr, other.trips), program, other)

    case = Case(
        sites=found,
        cost=cost,
        without=without,
        shape=lambda site: step_shape(numbered, site, _in(numbers[site])),
        named=named,
        alike=alike_step_checkpoints(step, found),
    )
    judged, offered = judge_all(
        case, residuals, program_as_written, estimate, profile, OpSources(step)
    )
    if not found:
        return EvaluatedCheckpoints((), tagged)
    try:
        plain = removed(frozenset(found))
    except JaxresidError:
        phases = replace(tagged, recompute=tagged.recompute + TAGGED)
        return EvaluatedCheckpoints(judged, phases, offered, is_known=False)
    phases = step_cost(plain).checkpointed(cost)
    return EvaluatedCheckpoints(judged, phases, offered, step_kept_nbytes(plain)[0])


def _traced(fun: Callable[..., Any], step: StepTrace) -> StepTrace:
    return step_trace(step_primal(fun, step.arguments), step.arguments, step.frames)


def _numbered(
    step: StepTrace, found: tuple[CheckpointSite, ...], removal: Removal[StepTrace]
) -> tuple[tuple[CheckpointSite, ...], dict[CheckpointSite, frozenset[int]]]:
    """Return the checkpoints with the bodies as written, and the numbers of what they bind."""
    numbers = removal.numbers(step.jaxpr, removal.numbered().jaxpr)
    found = with_bodies(found, numbers, removal)
    own = removal.numbers_of(found, numbers)
    hidden = removal.hidden_sites(own)
    return (*found, *hidden), own | hidden


def _unknown(
    found: Sequence[CheckpointSite], figures: ProgramFigures, tagged: Phases, reason: str
) -> EvaluatedCheckpoints:
    """Return the checkpoints unjudged, for a step that cannot be traced again."""
    phases = replace(tagged, recompute=tagged.recompute + TAGGED)
    return EvaluatedCheckpoints(
        tuple(JudgedCheckpoint(unjudged(s, figures, reason)) for s in found),
        phases,
        is_known=False,
    )


def _in(numbers: frozenset[int]) -> Callable[[Op], bool]:
    """Return a predicate: whether an op of the numbered program belongs to these checkpoints."""
    return lambda op: not numbers.isdisjoint(numbers_in(op.context.tags, op.eqn))

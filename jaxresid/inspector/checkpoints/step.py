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
from jaxresid.inspector.checkpoints.evidence import findings
from jaxresid.inspector.checkpoints.function import TAGGED, Worth, around
from jaxresid.inspector.checkpoints.offers import offers
from jaxresid.inspector.checkpoints.placement import step_shape
from jaxresid.inspector.checkpoints.policies import answers
from jaxresid.inspector.checkpoints.removal import Removal, numbers_in, with_bodies
from jaxresid.inspector.checkpoints.sites import Site, sites
from jaxresid.inspector.checkpoints.verdicts import Facts, Figures, judge, unjudged
from jaxresid.inspector.cost.jaxpr_cost import jaxpr_cost
from jaxresid.inspector.cost.step import step_cost
from jaxresid.inspector.jaxpr.callsites import may_hold_checkpoints
from jaxresid.inspector.jaxpr.frames import Frames
from jaxresid.inspector.jaxpr.level import Level
from jaxresid.inspector.jaxpr.levels import Levels
from jaxresid.inspector.memory.cpu.barriers import is_merged
from jaxresid.inspector.memory.peak import Places, peak_nbytes
from jaxresid.inspector.memory.profile import Profile
from jaxresid.inspector.program.build import Program, whole
from jaxresid.inspector.program.ops import Op
from jaxresid.inspector.program.step import settled, step_program
from jaxresid.inspector.residuals.step import step_residuals
from jaxresid.inspector.trace.step import StepTrace, step_primal, step_trace
from jaxresid.model import Peak, Phases, Residual, totals_of


def step_worth(
    fun: Callable[..., Any],
    step: StepTrace,
    frames: Frames,
    profile: Profile,
    residuals: tuple[Residual, ...],
    written: Program,
    estimate: Peak,
) -> Worth:
    """Judge every checkpoint of a training step.

    Args:
      fun: the training step itself.
      step: its trace.
      frames: reads the eqns' tracebacks.
      profile: the memory profile that peaks are estimated with.
      residuals: the residuals of the step.
      written: its program.
      estimate: its estimated peak.

    Returns:
      The checkpoints with their verdicts, and the cost of the passes.

    Raises:
      InputsError: a policy fails or gives no answer.
    """
    jaxpr, tagged = step.jaxpr, step_cost(step)
    if not may_hold_checkpoints(jaxpr, frames):
        return Worth((), tagged)
    removal = Removal(lambda: _traced(fun, step), lambda again: (again.jaxpr,), frames)
    figures = Figures(totals_of(residuals).computed_nbytes, estimate.nbytes, jaxpr_cost(jaxpr))
    found = sites(Levels(frames), Level(jaxpr, inputs=step.inputs), backward=True)
    try:
        found, numbers = _numbered(step, found, removal)
    except JaxresidError as e:
        return _unknown(found, figures, tagged, str(e))
    said = {site: answers(site.policy, site.held, str(site)) for site in found}

    @functools.cache
    def named() -> Program:
        # As it is written: what a compiler then merges is for the verdict.
        inputs, outputs, sharding = written.inputs, written.outputs, written.sharding
        return settled(whole(jaxpr, inputs, outputs, as_written=True, sharding=sharding))

    @functools.cache
    def removed(gone: frozenset[Site]) -> StepTrace:
        return removal.without({number for site in gone for number in numbers[site]})

    @functools.cache
    def numbered() -> Program:
        inputs, outputs = written.inputs, written.outputs
        return settled(whole(removal.numbered().jaxpr, inputs, outputs, as_written=True))

    places, judged = Places(frames, step), []
    for site in found:
        try:
            other = removed(frozenset([site]))
        except JaxresidError as e:
            judged.append(unjudged(site, figures, str(e)))
            continue
        without_it = step_program(other)
        facts = Facts(
            site=site,
            answers=said[site],
            shape=step_shape(numbered, site, _in(numbers[site])),
            around=around(site, found),
            figures=figures,
            without=_figures(other, without_it, frames, profile),
            peak_location=estimate.location,
            remover=profile.removes_barriers,
            is_merged=bool(profile.removes_barriers) and is_merged(written.block, without_it.block),
        )
        judged.append(judge(facts, findings(facts, residuals, written, named, places)))
    offered = offers([s for s in found if said[s].offloads])
    if not found:
        return Worth((), tagged)
    try:
        plain = removed(frozenset(found))
    except JaxresidError:
        phases = replace(tagged, recompute=tagged.recompute + TAGGED)
        return Worth(tuple(judged), phases, offered, is_known=False)
    phases = step_cost(plain).checkpointed(figures.cost)
    return Worth(tuple(judged), phases, offered, _kept(plain, frames))


def _traced(fun: Callable[..., Any], step: StepTrace) -> StepTrace:
    return step_trace(step_primal(fun, step.arguments), step.arguments)


def _numbered(
    step: StepTrace, found: tuple[Site, ...], removal: Removal[StepTrace]
) -> tuple[tuple[Site, ...], dict[Site, frozenset[int]]]:
    """Return the checkpoints with the bodies as written, and the numbers of what they bind."""
    numbers = removal.numbers(step.jaxpr, removal.numbered().jaxpr)
    found = with_bodies(found, numbers, removal)
    own = removal.numbers_of(found, numbers)
    hidden = removal.unshown(own)
    return (*found, *hidden), own | hidden


def _unknown(found: Sequence[Site], figures: Figures, tagged: Phases, reason: str) -> Worth:
    """Return the checkpoints unjudged, for a step that cannot be traced again."""
    phases = replace(tagged, recompute=tagged.recompute + TAGGED)
    return Worth(tuple(unjudged(s, figures, reason) for s in found), phases, is_known=False)


def _figures(step: StepTrace, program: Program, frames: Frames, profile: Profile) -> Figures:
    kept = totals_of(step_residuals(step, frames, program)).computed_nbytes
    return Figures(kept, peak_nbytes(program, profile), jaxpr_cost(step.jaxpr))


def _in(numbers: frozenset[int]) -> Callable[[Op], bool]:
    """Return a predicate: whether an op of the numbered program belongs to these checkpoints."""
    return lambda op: not numbers.isdisjoint(numbers_in(op.context.tags, op.eqn))


def _kept(step: StepTrace, frames: Frames) -> int:
    return totals_of(step_residuals(step, frames)).computed_nbytes

"""Judge each checkpoint of a program by comparing the program with it to the program without it.

A verdict is a counterfactual. The remat eqns of one site are replaced in what is differentiated by
what their bodies do, the result is differentiated again, and residuals, FLOPs and peak are
compared. Where what is differentiated does not hold them as they are written (in an inner
derivative, around rules of `lax.custom_root`), the program is traced again without them, see
`removal`. `policy=everything_saveable` would not do for the counterfactual: it keeps the barrier
and cancels the checkpoints inside.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

from jaxresid import jax_compat
from jaxresid.base.errors import JaxresidError, TraceError
from jaxresid.inspector.checkpoints.alike import alike_checkpoints
from jaxresid.inspector.checkpoints.counterfactuals import Counterfactual
from jaxresid.inspector.checkpoints.judging import (
    TAGGED,
    Case,
    EvaluatedCheckpoints,
    JudgedCheckpoint,
    figures_of,
    judge_all,
)
from jaxresid.inspector.checkpoints.placement import shape
from jaxresid.inspector.checkpoints.policies import answers
from jaxresid.inspector.checkpoints.removed import Removed
from jaxresid.inspector.checkpoints.sites import CheckpointSite, sites
from jaxresid.inspector.checkpoints.verdicts import ProgramFigures, unjudged
from jaxresid.inspector.few_layers import Figures
from jaxresid.inspector.holes.holes import Hole, Holes
from jaxresid.inspector.jaxpr.level import Level
from jaxresid.inspector.jaxpr.levels import Levels
from jaxresid.inspector.memory.peak import OpSources
from jaxresid.inspector.memory.profile import Profile
from jaxresid.inspector.program.build import Program, ValueRole, program_of_jaxpr
from jaxresid.inspector.residuals.offloading import KeptResidual
from jaxresid.inspector.trace.function import TracedFunction
from jaxresid.results import Cost, Peak, Phases, Residual


def evaluate_checkpoints(
    holes: Holes[Any],
    profile: Profile,
    residuals: tuple[Residual, ...],
    program_as_written: Program,
    estimate: Peak | None,
    *,
    why_unknown: str = "",
) -> EvaluatedCheckpoints:
    """Judge every checkpoint of a program.

    Args:
      holes: what the program differentiates.
      profile: the memory profile that peaks are estimated with.
      residuals: its residuals.
      program_as_written: the whole program; of a loss, of its value and gradients.
      estimate: its estimated peak; None where peaks are not estimated.
      why_unknown: why no checkpoint can be judged; '' where they can.

    Returns:
      The checkpoints with their verdicts, and the cost of the passes.

    Raises:
      InputsError: a policy fails or gives no answer.
    """
    traced = holes.traced
    if not traced.has_checkpoints:
        return EvaluatedCheckpoints((), holes.phases(traced))
    cost = holes.cost(traced)
    try:
        if why_unknown:
            raise TraceError(why_unknown)
        removed = Removed(holes)
    except JaxresidError as e:
        found = sites(traced.levels, traced.tops[-1], backward=True)
        figures = figures_of(cost, residuals, estimate)
        judged = tuple(JudgedCheckpoint(unjudged(site, figures, str(e))) for site in found)
        phases = _with_recompute(holes.phases_by_tags(program_as_written), TAGGED)
        return EvaluatedCheckpoints(judged, phases, is_known=False)
    checkpoint_sites = removed.sites
    if not checkpoint_sites:
        return EvaluatedCheckpoints((), holes.phases(traced))

    @functools.cache
    def program(hole: Hole) -> Program:
        jaxpr = hole.jaxpr
        roles = [ValueRole("argument")] * (len(jaxpr.constvars) + len(jaxpr.invars))
        return program_of_jaxpr(
            jaxpr, roles, [ValueRole("output")] * len(jaxpr.outvars), as_written=True
        )

    def shown_in(site: CheckpointSite) -> Program:
        return program(removed.hole_of(site) or holes.holes[0])

    def without(site: CheckpointSite) -> Counterfactual:
        other = removed.without([site])
        without_it = holes.program(other)
        kept, _ = holes.kept_nbytes(other, without_it)
        return Counterfactual(kept, holes.cost(other), without_it, other)

    @functools.cache
    def few_without(gone: frozenset[CheckpointSite]) -> Figures | None:
        return removed.few_without(gone, profile)

    def told(site: CheckpointSite) -> ProgramFigures | None:
        found = few_without(frozenset((site,)))
        if found is None:
            return None
        return ProgramFigures(found.kept_nbytes, found.peak_nbytes, sum(found.passes, Cost()))

    @functools.cache
    def whole() -> tuple[Program, OpSources]:
        return holes.spliced(program_as_written)

    case = Case(
        sites=checkpoint_sites,
        cost=cost,
        without=without,
        shape=lambda s: shape(lambda: shown_in(s), s) if s.is_as_written else None,
        named=shown_in,
        whole=whole,
        alike=alike_checkpoints(holes, checkpoint_sites),
        told=told,
    )
    judged, offered = judge_all(case, residuals, program_as_written, estimate, profile)
    few = few_without(frozenset(checkpoint_sites))
    try:
        bare = holes.phases(removed.without(checkpoint_sites)) if few is None else few.phases
    except JaxresidError:
        phases = _with_recompute(holes.phases_by_tags(program_as_written), TAGGED)
        return EvaluatedCheckpoints(judged, phases, offered, is_known=False)

    def kept_without() -> tuple[KeptResidual, ...]:
        plain = removed.without(checkpoint_sites)
        return holes.kept(plain, holes.program(plain))

    return EvaluatedCheckpoints(judged, bare.checkpointed(cost), offered, kept_without)


def check_policies(primal: TracedFunction, levels: Levels) -> None:
    """Ask the policy of each checkpoint of a primal trace about the eqns in the checkpoint.

    Raises:
      InputsError: a policy fails or gives no answer.
    """
    for site in sites(levels, Level(jax_compat.open_jaxpr(primal.jaxpr))):
        answers(site.policy, site.held, str(site))


def _with_recompute(phases: Phases, more: Cost) -> Phases:
    return replace(phases, recompute=phases.recompute + more)

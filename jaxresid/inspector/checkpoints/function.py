"""Judge each checkpoint of a function by comparing the program with it to the program without it.

A verdict is a counterfactual. The remat eqns of one site are replaced in the primal jaxpr by
what their bodies do, the result is differentiated again, and residuals, FLOPs and peak are
compared. Where the primal jaxpr does not hold them as they are written (in an inner derivative,
around rules of `lax.custom_root`), the function is traced again without them, see `removal`.
`policy=everything_saveable` would not do for the counterfactual: it keeps the barrier and cancels
the checkpoints inside.
"""

from __future__ import annotations

import functools

from jaxresid import jax_compat
from jaxresid.errors import JaxresidError
from jaxresid.inspector.checkpoints.alike import alike_checkpoints
from jaxresid.inspector.checkpoints.counterfactuals import Counterfactual
from jaxresid.inspector.checkpoints.judging import (
    TAGGED,
    Case,
    EvaluatedCheckpoints,
    judge_all,
)
from jaxresid.inspector.checkpoints.placement import shape
from jaxresid.inspector.checkpoints.policies import answers
from jaxresid.inspector.checkpoints.removed import Removed
from jaxresid.inspector.checkpoints.sites import CheckpointSite, sites
from jaxresid.inspector.checkpoints.verdicts import ProgramFigures
from jaxresid.inspector.cost.jaxpr_cost import passes_cost
from jaxresid.inspector.few_layers import Figures, whole_figures
from jaxresid.inspector.jaxpr.level import Level
from jaxresid.inspector.jaxpr.levels import Levels
from jaxresid.inspector.jaxpr.phases import RECOMPUTE
from jaxresid.inspector.memory.peak import OpSources
from jaxresid.inspector.memory.profile import Profile
from jaxresid.inspector.program.build import (
    Program,
    ValueRole,
    program_of_jaxpr,
    value_and_gradients,
)
from jaxresid.inspector.program.op_cost import block_cost
from jaxresid.inspector.residuals.offloading import kept_by, kept_nbytes
from jaxresid.inspector.trace.function import Trace, TracedFunction
from jaxresid.model import Cost, Peak, Phases, Residual


def evaluate_checkpoints(
    traced: Trace,
    profile: Profile,
    residuals: tuple[Residual, ...],
    program_as_written: Program,
    estimate: Peak | None,
) -> EvaluatedCheckpoints:
    """Judge every checkpoint of a function.

    Args:
      traced: the trace of the function.
      profile: the memory profile that peaks are estimated with.
      residuals: the residuals of the function.
      program_as_written: the program of its value and gradients.
      estimate: its estimated peak; None where peaks are not estimated.

    Returns:
      The checkpoints with their verdicts, and the cost of the passes.

    Raises:
      InputsError: a policy fails or gives no answer.
    """
    if not traced.has_checkpoints:
        return EvaluatedCheckpoints((), Phases(*passes_cost(traced), Cost()))
    jaxpr, removed = traced.written, Removed(traced)
    checkpoint_sites = removed.sites
    if not checkpoint_sites:
        return EvaluatedCheckpoints((), Phases(*passes_cost(traced), Cost()))

    @functools.cache
    def program() -> Program:
        roles = [ValueRole("argument")] * (len(jaxpr.constvars) + len(jaxpr.invars))
        return program_of_jaxpr(
            jaxpr, roles, [ValueRole("output")] * len(jaxpr.outvars), as_written=True
        )

    def without(site: CheckpointSite) -> Counterfactual:
        other = removed.without([site])
        without_it = value_and_gradients(other)
        kept, _ = kept_nbytes(kept_by(other, without_it))
        return Counterfactual(kept, _cost(other), without_it, other)

    @functools.cache
    def few_without(gone: frozenset[CheckpointSite]) -> Figures | None:
        few = removed.few_without(gone)
        return None if few is None else whole_figures(few, profile)

    def told(site: CheckpointSite) -> ProgramFigures | None:
        found = few_without(frozenset((site,)))
        if found is None:
            return None
        return ProgramFigures(found.kept_nbytes, found.peak_nbytes, _sum(found.passes))

    case = Case(
        sites=checkpoint_sites,
        cost=_cost(traced),
        without=without,
        shape=lambda site: shape(program, site) if site.is_as_written else None,
        named=program,
        alike=alike_checkpoints(traced, checkpoint_sites),
        told=told,
    )
    judged, offered = judge_all(
        case, residuals, program_as_written, estimate, profile, OpSources(traced)
    )
    few = few_without(frozenset(checkpoint_sites))
    plain = functools.partial(removed.without, checkpoint_sites)
    try:
        passes = passes_cost(plain()) if few is None else few.passes
    except JaxresidError:
        return EvaluatedCheckpoints(
            judged, _phases_by_tags(traced, program_as_written, case.cost), offered, is_known=False
        )
    phases = Phases(*passes, Cost()).checkpointed(case.cost)
    return EvaluatedCheckpoints(judged, phases, offered, plain)


def check_policies(primal: TracedFunction, levels: Levels) -> None:
    """Ask the policy of each checkpoint of a primal trace about the eqns in the checkpoint.

    Raises:
      InputsError: a policy fails or gives no answer.
    """
    for site in sites(levels, Level(jax_compat.open_jaxpr(primal.jaxpr))):
        answers(site.policy, site.held, str(site))


def _cost(traced: Trace) -> Cost:
    return _sum(passes_cost(traced))


def _sum(passes: tuple[Cost, Cost]) -> Cost:
    forward, backward = passes
    return forward + backward


def _phases_by_tags(traced: Trace, written: Program, total: Cost) -> Phases:
    """Split the total cost by what JAX tags as recomputed, where the trace without is not known."""
    forward, recompute = passes_cost(traced)[0], block_cost(written.block, traced.trips, RECOMPUTE)
    return Phases(forward, total - forward - recompute, recompute + TAGGED)

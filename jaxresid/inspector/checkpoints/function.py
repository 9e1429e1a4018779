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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jaxresid import jax_compat
from jaxresid.errors import JaxresidError
from jaxresid.inspector.checkpoints.evidence import findings
from jaxresid.inspector.checkpoints.offers import Offer, offers
from jaxresid.inspector.checkpoints.placement import shape
from jaxresid.inspector.checkpoints.policies import answers
from jaxresid.inspector.checkpoints.removed import Removed
from jaxresid.inspector.checkpoints.sites import Site, sites
from jaxresid.inspector.checkpoints.verdicts import Facts, Figures, judge, unjudged
from jaxresid.inspector.cost.jaxpr_cost import passes_cost
from jaxresid.inspector.jaxpr.frames import Frames
from jaxresid.inspector.jaxpr.level import Level
from jaxresid.inspector.jaxpr.levels import Levels
from jaxresid.inspector.jaxpr.phases import RECOMPUTE
from jaxresid.inspector.memory.cpu.barriers import is_merged
from jaxresid.inspector.memory.peak import Places, peak_nbytes
from jaxresid.inspector.memory.profile import Profile
from jaxresid.inspector.program.build import Program, Role, value_and_gradients, whole
from jaxresid.inspector.program.op_cost import block_cost
from jaxresid.inspector.residuals.totals import kept
from jaxresid.inspector.trace.function import Trace
from jaxresid.model import Checkpoint, Cost, Peak, Phases, Residual, totals_of

# Said where what a program without its checkpoints costs is not known.
TAGGED = Cost(
    notes=("recompute: only what JAX marks as recomputed, as some checkpoints cannot be judged",)
)


@dataclass(frozen=True, slots=True)
class Worth:
    """The judged checkpoints of a function, and the cost of its passes that follows from them.

    Attributes:
      checkpoints: the checkpoints with their verdicts.
      cost: the cost of the forward pass, of the backward pass and of the recomputation.
      offers: the checkpoints that offload something.
      plain: what the function keeps without any checkpoint; None means the same as with them. For a
        training step only the total in bytes.
      is_known: whether `plain` could be determined.
    """

    checkpoints: tuple[Checkpoint, ...]
    cost: Phases
    offers: tuple[Offer, ...] = ()
    plain: Trace | int | None = None
    is_known: bool = True


def worth(
    traced: Trace,
    frames: Frames,
    profile: Profile,
    residuals: tuple[Residual, ...],
    written: Program,
    estimate: Peak,
) -> Worth:
    """Judge every checkpoint of a function.

    Args:
      traced: the trace of the function.
      frames: reads the eqns' tracebacks.
      profile: the memory profile that peaks are estimated with.
      residuals: the residuals of the function.
      written: the program of its value and gradients.
      estimate: its estimated peak.

    Returns:
      The checkpoints with their verdicts, and the cost of the passes.

    Raises:
      InputsError: a policy fails or gives no answer.
    """
    jaxpr = jax_compat.open_jaxpr(traced.primal().jaxpr)
    removed = Removed(traced, jaxpr, frames)
    found = removed.sites
    figures = Figures(totals_of(residuals).computed_nbytes, estimate.nbytes, _cost(traced))
    if not found:
        return Worth((), Phases(*passes_cost(traced), Cost()))
    said = {site: answers(site.policy, site.held, str(site)) for site in found}

    @functools.cache
    def program() -> Program:
        roles = [Role("argument")] * (len(jaxpr.constvars) + len(jaxpr.invars))
        return whole(jaxpr, roles, [Role("output")] * len(jaxpr.outvars), as_written=True)

    places, judged = Places(frames, traced), []
    for site in found:
        try:
            other = removed.without([site])
        except JaxresidError as e:
            judged.append(unjudged(site, figures, str(e)))
            continue
        without_it = value_and_gradients(other)
        facts = Facts(
            site=site,
            answers=said[site],
            shape=shape(program, site) if site.is_as_written else None,
            around=around(site, found),
            figures=figures,
            without=Figures(
                kept(other, frames, without_it)[0],
                peak_nbytes(without_it, profile),
                _cost(other),
            ),
            peak_location=estimate.location,
            remover=profile.removes_barriers,
            is_merged=bool(profile.removes_barriers) and is_merged(written.block, without_it.block),
        )
        judged.append(judge(facts, findings(facts, residuals, written, program, places)))
    offered = offers([s for s in found if said[s].offloads])
    try:
        plain = removed.without(found)
    except JaxresidError:
        return Worth(tuple(judged), _tagged(traced, written, figures.cost), offered, is_known=False)
    return Worth(tuple(judged), _phases(plain, figures.cost), offered, plain)


def check_policies(primal: Any, frames: Frames) -> None:
    """Ask the policy of each checkpoint of a primal trace about the eqns in the checkpoint.

    Raises:
      InputsError: a policy fails or gives no answer.
    """
    for site in sites(Levels(frames), Level(jax_compat.open_jaxpr(primal.jaxpr))):
        answers(site.policy, site.held, str(site))


def _cost(traced: Trace) -> Cost:
    forward, backward = passes_cost(traced)
    return forward + backward


def _phases(plain: Trace, total: Cost) -> Phases:
    """Split the total cost with checkpoints into its three parts, by the trace without them."""
    return Phases(*passes_cost(plain), Cost()).checkpointed(total)


def _tagged(traced: Trace, written: Program, total: Cost) -> Phases:
    """Split the total cost by what JAX tags as recomputed, where the trace without is not known."""
    forward, recompute = passes_cost(traced)[0], block_cost(written.block, RECOMPUTE)
    return Phases(forward, total - forward - recompute, recompute + TAGGED)


def around(site: Site, found: Sequence[Site]) -> Site | None:
    """Return the outermost checkpoint around a nested one, None where the site is not nested."""
    if not site.is_nested:
        return None
    outer = id(site.calls[0].around[0])
    return next((other for other in found if outer in other.eqns), None)

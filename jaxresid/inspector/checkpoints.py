"""What each checkpoint of a function is worth: the program with it against the program without it.

A verdict is a counterfactual. The remat eqns of one site are replaced in the primal jaxpr by
what their bodies do, the result is differentiated again, and residuals, FLOPs and peak are
compared; no user code runs again. Not `policy=everything_saveable`, which keeps the barrier and
cancels the checkpoints inside.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from jaxresid.inspector import _jax
from jaxresid.inspector.checkpoint_findings import findings
from jaxresid.inspector.cost import jaxpr_cost
from jaxresid.inspector.frames import Frames
from jaxresid.inspector.host_findings import Offer, offers
from jaxresid.inspector.inlining import without
from jaxresid.inspector.kept import kept
from jaxresid.inspector.levels import Level, Levels
from jaxresid.inspector.nesting import eqns_in
from jaxresid.inspector.peak import Places, peak_nbytes
from jaxresid.inspector.policies import answers
from jaxresid.inspector.program import Program, Role, value_and_gradients, whole
from jaxresid.inspector.shapes import shape
from jaxresid.inspector.sites import Site, sites
from jaxresid.inspector.storage import Profile
from jaxresid.inspector.tracing import Trace, retrace
from jaxresid.inspector.verdicts import Facts, Figures, judge
from jaxresid.model import Checkpoint, Cost, Peak, Phases, Residual, totals_of


@dataclass(frozen=True, slots=True)
class Worth:
    """The checkpoints of a function, and the cost of its passes in the light of them.

    Attributes:
      offers: those that offload something.
      plain: what the function keeps without any checkpoint; None: the same. Of a training step the
        bytes, as a total alone.
    """

    checkpoints: tuple[Checkpoint, ...]
    cost: Phases
    offers: tuple[Offer, ...] = ()
    plain: Trace | int | None = None


def worth(
    traced: Trace,
    frames: Frames,
    profile: Profile,
    residuals: tuple[Residual, ...],
    written: Program,
    estimate: Peak,
) -> Worth:
    """Judges every checkpoint of a function.

    Args:
      written: the program of its value and gradients.
      estimate: its peak.

    Raises:
      InputsError: a policy fails or gives no answer.
    """
    levels = Levels(frames)
    primal = traced.primal()
    jaxpr = _jax.open_jaxpr(primal.jaxpr)
    found = sites(levels, Level(jaxpr))
    figures = Figures(totals_of(residuals).computed_nbytes, estimate.nbytes, _cost(traced))
    if not found:
        return Worth((), _phases(traced, figures.cost))
    said = {site: answers(site.policy, eqns_in(site.calls[0].jaxpr), str(site)) for site in found}

    @functools.cache
    def program() -> Program:
        roles = [Role("argument")] * (len(jaxpr.constvars) + len(jaxpr.invars))
        return whole(jaxpr, roles, [Role("output")] * len(jaxpr.outvars), as_written=True)

    def removed(eqns: Iterable[int]) -> Trace:
        return retrace(traced, _jax.with_jaxpr(primal.jaxpr, without(jaxpr, eqns)))

    places, judged = Places(frames, traced), []
    plain: Trace | None = None
    for site in found:
        other = removed(site.eqns)
        plain = other if len(found) == 1 else None
        without_it = value_and_gradients(other)
        facts = Facts(
            site=site,
            answers=said[site],
            shape=shape(program, site),
            around=around(site, found),
            figures=figures,
            without=Figures(
                kept(other, frames, without_it)[0],
                peak_nbytes(without_it, profile),
                _cost(other),
            ),
            peak_location=estimate.location,
        )
        judged.append(judge(facts, findings(facts, residuals, written, program, places)))
    plain = plain or removed({eqn for site in found for eqn in site.eqns})
    offered = offers([s for s in found if said[s].offloads], jaxpr, is_step=False)
    return Worth(tuple(judged), _phases(plain, figures.cost), offered, plain)


def check_policies(primal: Any, frames: Frames) -> None:
    """Asks the policy of each checkpoint of a primal trace about what it holds.

    Raises:
      InputsError: a policy fails or gives no answer.
    """
    for site in sites(Levels(frames), Level(_jax.open_jaxpr(primal.jaxpr))):
        answers(site.policy, eqns_in(site.calls[0].jaxpr), str(site))


def _cost(traced: Trace) -> Cost:
    return jaxpr_cost(traced.forward) + jaxpr_cost(traced.backward)


def _phases(plain: Trace, total: Cost) -> Phases:
    """The cost in its three parts, from the trace without checkpoints and the total with them."""
    forward, backward = jaxpr_cost(plain.forward), jaxpr_cost(plain.backward)
    return Phases(forward, backward, total - forward - backward)


def around(site: Site, found: Sequence[Site]) -> Site | None:
    """The checkpoint that stands outermost around a nested one."""
    if not site.is_nested:
        return None
    outer = id(site.calls[0].around[0])
    return next((other for other in found if outer in other.eqns), None)

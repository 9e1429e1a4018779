"""Judge checkpoints by the program without each of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from jaxresid.base.errors import JaxresidError
from jaxresid.inspector.checkpoints.alike import PlacedCheckpoint
from jaxresid.inspector.checkpoints.counterfactuals import Counterfactual, Counterfactuals
from jaxresid.inspector.checkpoints.evidence import findings
from jaxresid.inspector.checkpoints.offers import Offer, offers
from jaxresid.inspector.checkpoints.policies import answers
from jaxresid.inspector.checkpoints.sites import CheckpointSite
from jaxresid.inspector.checkpoints.verdicts import (
    ProgramFigures,
    VerdictFacts,
    judge,
    judge_by_xla,
    unjudged,
)
from jaxresid.inspector.memory.peak import OpSources
from jaxresid.inspector.memory.profile import Profile
from jaxresid.inspector.program.build import Program
from jaxresid.inspector.residuals.offloading import KeptResidual
from jaxresid.results import Checkpoint, Cost, Finding, Peak, Phases, Residual, totals_of

# Said where what a program without its checkpoints costs is not known.
TAGGED = Cost(
    notes=("recompute: only what JAX marks as recomputed, as some checkpoints cannot be judged",)
)


@dataclass(frozen=True, slots=True)
class EvaluatedCheckpoints:
    """The judged checkpoints of a function, and the cost of its passes that follows from them.

    Attributes:
      judged: the checkpoints with their verdicts, and with what these are made of.
      cost: the cost of the forward pass, of the backward pass and of the recomputation.
      offers: the checkpoints that offload something.
      plain: returns what the program keeps without any checkpoint; None means that it keeps the
        same with them.
      is_known: whether `plain` could be determined.
    """

    judged: tuple[JudgedCheckpoint, ...]
    cost: Phases
    offers: tuple[Offer, ...] = ()
    plain: Callable[[], tuple[KeptResidual, ...]] | None = None
    is_known: bool = True


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a verdict on a checkpoint is made of.

    Attributes:
      facts: the facts.
      without: makes the program without the checkpoint.
      findings: makes the findings about the checkpoint, given such facts.
    """

    facts: VerdictFacts
    without: Callable[[], Counterfactual]
    findings: Callable[[VerdictFacts], tuple[Finding, ...]]


@dataclass(frozen=True, slots=True)
class JudgedCheckpoint:
    """A checkpoint with its verdict.

    Attributes:
      checkpoint: the checkpoint.
      judgement: what the verdict is made of; None where the checkpoint is not judged.
    """

    checkpoint: Checkpoint
    judgement: Judgement | None = None

    @property
    def dropped_nbytes(self) -> int:
        """The bytes of residuals that it drops; 0 where that is not known."""
        without = self.checkpoint.kept_without_nbytes
        return 0 if without is None else without - self.checkpoint.kept_nbytes

    def by_xla(self, nbytes: int, without_nbytes: int) -> Checkpoint:
        """Return the checkpoint with the verdict that XLA's peaks call for.

        Args:
          nbytes: XLA's peak of the program with the checkpoint, in bytes.
          without_nbytes: the same without it.
        """
        if self.judgement is None:
            return self.checkpoint
        facts, findings = self.judgement.facts, self.judgement.findings
        return judge_by_xla(facts, nbytes, without_nbytes, findings)

    def unconfirmed(self, reason: str) -> Checkpoint:
        """Return the checkpoint with the reason why XLA's verdict is not there."""
        return replace(self.checkpoint, unconfirmed=reason)


@dataclass(frozen=True, slots=True)
class Case:
    """The checkpoints of a function or step, and how to find out about each of them.

    Attributes:
      sites: the checkpoints.
      cost: the cost of the function with its gradients, or of the step, with all checkpoints.
      without: makes the program without a checkpoint; raises JaxresidError where that fails.
      shape: tells how a checkpoint is placed, see `placement.shape`.
      named: makes the program that shows a checkpoint, with checkpoint_names as written.
      whole: makes the whole program of the eqns that `named` has, and finds their places.
      alike: groups of checkpoints that are alike, in program order.
      told: tells the figures of the program without a checkpoint, where they can be told without
        making that program; else None.
    """

    sites: Sequence[CheckpointSite]
    cost: Cost
    without: Callable[[CheckpointSite], Counterfactual]
    shape: Callable[[CheckpointSite], str | None]
    named: Callable[[CheckpointSite], Program]
    whole: Callable[[], tuple[Program, OpSources]]
    alike: Sequence[Sequence[PlacedCheckpoint]] = ()
    told: Callable[[CheckpointSite], ProgramFigures | None] = lambda site: None


def judge_all(
    case: Case,
    residuals: tuple[Residual, ...],
    written: Program,
    estimate: Peak | None,
    profile: Profile,
) -> tuple[tuple[JudgedCheckpoint, ...], tuple[Offer, ...]]:
    """Return the checkpoints of a case with their verdicts, and those that offload something.

    Args:
      case: the checkpoints.
      residuals: the residuals of the function or step.
      written: its program.
      estimate: its estimated peak; None where peaks are not estimated.
      profile: the memory profile that peaks are estimated with.

    Raises:
      InputsError: a policy fails or gives no answer.
    """
    policy_answers = {site: answers(site.policy, site.held, str(site)) for site in case.sites}
    figures, judged = figures_of(case.cost, residuals, estimate), list[JudgedCheckpoint]()

    def found(facts: VerdictFacts) -> tuple[Finding, ...]:
        named = functools.partial(case.named, facts.site)
        return findings(facts, residuals, case.whole, named)

    counterfactuals = Counterfactuals(
        case.without, case.told, written, profile, case.alike, has_peaks=estimate is not None
    )
    for site in case.sites:
        try:
            without = counterfactuals.figures(site)
        except JaxresidError as e:
            judged.append(JudgedCheckpoint(unjudged(site, figures, str(e))))
            continue
        facts = VerdictFacts(
            site=site,
            answers=policy_answers[site],
            shape=case.shape(site),
            around=_around(site, case.sites),
            figures=figures,
            without=without,
            peak_location=None if estimate is None else estimate.location,
        )
        checkpoint = judge(facts, found(facts))
        make = functools.partial(counterfactuals.without, site)
        judged.append(JudgedCheckpoint(checkpoint, Judgement(facts, make, found)))
    return tuple(judged), offers([site for site in case.sites if policy_answers[site].offloads])


def figures_of(
    cost: Cost, residuals: tuple[Residual, ...], estimate: Peak | None
) -> ProgramFigures:
    """Return the figures of a function or step with all its checkpoints."""
    nbytes = None if estimate is None else estimate.nbytes
    return ProgramFigures(totals_of(residuals).computed_nbytes, nbytes, cost)


def _around(site: CheckpointSite, found: Sequence[CheckpointSite]) -> CheckpointSite | None:
    """Return the outermost checkpoint around a nested one, None where the site is not nested."""
    if not site.is_nested:
        return None
    outer = id(site.calls[0].around[0])
    return next((other for other in found if outer in other.eqns), None)

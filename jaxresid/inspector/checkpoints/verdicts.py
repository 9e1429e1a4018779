"""Turn the figures of a program with and without one checkpoint into a verdict and its reason."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from jaxresid.base.text.units import format_bytes, format_flops
from jaxresid.inspector.checkpoints.placement import AROUND_LOOP, LAST_STAGE, WHOLE
from jaxresid.inspector.checkpoints.policies import (
    Answers,
    description,
    means_nothing,
    wanted_names,
)
from jaxresid.inspector.checkpoints.sites import CheckpointSite
from jaxresid.results import Checkpoint, Cost, EstimatedVerdict, Finding, Location, Verdict

# A checkpoint that lowers the peak by less than this share of what it drops saves nothing,
USEFUL_RATIO = 0.25
# unless the peak falls by this share of itself, which is more than the estimate misses: where a
# compiler recomputes cheap values by itself, most of what is dropped was never held.
CLEAR_CHANGE = 0.10
# A peak that rises by more than this share costs memory; less is within what the estimate misses,
# and not worth a reader's time where it is XLA's.
COSTLY_RISE = 0.02
# Why a checkpoint is not judged where peaks are not estimated.
UNKNOWN_PEAK = "the peak without it is not known: --compile asks the compiler for it"


@dataclass(frozen=True, slots=True)
class ProgramFigures:
    """The kept residual bytes, the peak in bytes, where it is known, and the cost of a program."""

    kept_nbytes: int
    peak_nbytes: int | None
    cost: Cost


@dataclass(frozen=True, slots=True)
class VerdictFacts:
    """All the facts that a verdict is made of.

    Attributes:
      site: the checkpoint.
      answers: the answers of its policy.
      shape: where it is, see `placement.shape`.
      around: the outermost checkpoint around it, None where it is not nested.
      figures: the figures of the program with it.
      without: the figures of the program without it.
      peak_location: the source line of the peak.
      by_xla: whether the peaks are XLA's and not estimates.
    """

    site: CheckpointSite
    answers: Answers
    shape: str | None
    around: CheckpointSite | None
    figures: ProgramFigures
    without: ProgramFigures
    peak_location: Location | None
    by_xla: bool = False

    @property
    def peaks(self) -> tuple[int, int] | None:
        """The peaks with it and without it, in bytes; None where they are not known."""
        nbytes, without = self.figures.peak_nbytes, self.without.peak_nbytes
        return None if nbytes is None or without is None else (nbytes, without)


def judge(facts: VerdictFacts, findings: Sequence[Finding] = ()) -> Checkpoint:
    """Return the checkpoint with its verdict."""
    without = facts.without
    verdict, reason = _verdict(facts)
    added = facts.figures.cost - without.cost
    recompute = max(added.flops, 0)
    made = unjudged(facts.site, facts.figures, reason)
    return replace(
        made,
        kept_without_nbytes=without.kept_nbytes,
        recompute_flops=recompute,
        recompute_fraction=recompute / without.cost.flops if without.cost.flops else 0.0,
        peak_without_nbytes=without.peak_nbytes,
        ratio=_ratio(facts),
        verdict=verdict,
        shape=facts.shape or made.shape,
        findings=tuple(findings),
        uncosted=added.uncosted,
    )


def judge_by_xla(
    facts: VerdictFacts,
    peak_nbytes: int,
    peak_without_nbytes: int,
    findings: Callable[[VerdictFacts], Sequence[Finding]],
) -> Checkpoint:
    """Return the checkpoint with the verdict that XLA's peaks call for, and the estimate's, if any.

    Args:
      facts: the facts that the estimate's verdict is made of.
      peak_nbytes: XLA's peak of the program with the checkpoint, in bytes.
      peak_without_nbytes: the same without it.
      findings: makes the findings about the checkpoint.
    """
    by_xla = replace(
        facts,
        figures=replace(facts.figures, peak_nbytes=peak_nbytes),
        without=replace(facts.without, peak_nbytes=peak_without_nbytes),
        peak_location=None,
        by_xla=True,
    )
    estimated = None
    if facts.peaks is not None:
        verdict, reason = _verdict(facts)
        estimated = EstimatedVerdict(verdict, reason, *facts.peaks, _ratio(facts))
    return replace(judge(by_xla, findings(by_xla)), by="xla", estimated=estimated)


def unjudged(site: CheckpointSite, figures: ProgramFigures, reason: str) -> Checkpoint:
    """Return a checkpoint without a verdict, for when the program without it is not known.

    Args:
      site: the checkpoint.
      figures: the figures of the program with it.
      reason: why it is not judged.
    """
    return Checkpoint(
        function=site.function,
        source=site.source,
        policy=description(site.policy),
        prevent_cse=site.prevent_cse,
        calls=max(len(site.calls), 1),
        trips=max(site.trips, 1),
        kept_nbytes=figures.kept_nbytes,
        kept_without_nbytes=None,
        recompute_flops=None,
        recompute_fraction=None,
        peak_nbytes=figures.peak_nbytes,
        peak_without_nbytes=None,
        ratio=None,
        verdict=Verdict.NOT_JUDGED,
        reason=reason,
        shape="nested" if site.is_nested else None,
        defined=site.body.defined,
    )


def _dropped(facts: VerdictFacts) -> int:
    return facts.without.kept_nbytes - facts.figures.kept_nbytes


def _saved(facts: VerdictFacts) -> int:
    assert facts.peaks is not None
    nbytes, without = facts.peaks
    return without - nbytes


def _share_of_peak(facts: VerdictFacts, share: float) -> float:
    """Return a share of the peak without the checkpoint, in bytes."""
    assert facts.peaks is not None
    return share * facts.peaks[1]


def _ratio(facts: VerdictFacts) -> float | None:
    dropped = _dropped(facts)
    return _saved(facts) / dropped if dropped > 0 and facts.peaks is not None else None


def _verdict(facts: VerdictFacts) -> tuple[Verdict, str]:
    for rule in _BY_POLICY if facts.peaks is None else (*_BY_POLICY, *_BY_PEAK):
        found = rule(facts)
        if found is not None:
            return found
    if facts.peaks is None:
        return Verdict.NOT_JUDGED, UNKNOWN_PEAK
    dropped, saved = _dropped(facts), _saved(facts)
    drops = f"{format_bytes(dropped)} of" if dropped > 0 else "no"
    return Verdict.EARNS, (
        f"it drops {drops} residuals and the peak falls by {format_bytes(saved)}"
        f"{_added_cost(facts)}"
    )


def _added_cost(facts: VerdictFacts) -> str:
    added = facts.figures.cost - facts.without.cost
    if added.flops > 0:
        share = added.flops / facts.without.cost.flops if facts.without.cost.flops else 0.0
        return f", for {format_flops(added.flops)} more ({share:.1%})"
    if added.transcendentals > 0:
        return f", for {added.transcendentals} more evaluations of exp, sin and the like"
    return ", at no cost in FLOPs"


def _matched_nothing(facts: VerdictFacts) -> tuple[Verdict, str] | None:
    policy = facts.site.policy
    if facts.answers.saves or means_nothing(policy):
        return None
    names = wanted_names(policy)
    if names:
        missed = ", ".join(repr(n) for n in sorted(names))
        return Verdict.MATCHED_NOTHING, (
            f"its policy saves {missed}, but no value in it has that name"
            f"{_similar_names(facts, names)}: everything is recomputed"
        )
    if "dot" not in (description(policy) or ""):
        return None  # one that the user wrote may mean to save nothing
    return Verdict.MATCHED_NOTHING, (
        f"its policy {description(policy)} finds nothing in it to save: everything is recomputed"
    )


def _similar_names(facts: VerdictFacts, names: Sequence[str] | frozenset[str]) -> str:
    from jaxresid.base.text.nearest import nearest

    known = sorted(facts.answers.names)
    if not known:
        return " (none has a name)"
    close = {n for name in names if (n := nearest(name, known)) is not None}
    if close:
        return f" (closest: {', '.join(repr(n) for n in sorted(close))})"
    listed = ", ".join(repr(n) for n in known[:5]) + (", ..." if len(known) > 5 else "")
    return f" (known names: {listed})"


def _overridden(facts: VerdictFacts) -> tuple[Verdict, str] | None:
    if not (facts.site.is_nested and facts.answers.saves):
        return None
    around = (
        f"the checkpoint around it, at {facts.around}," if facts.around else "the one around it"
    )
    return Verdict.OVERRIDDEN, (
        f"{around} decides what is kept: its own policy {description(facts.site.policy)} saves"
        " nothing for the backward pass"
    )


def _costs_memory(facts: VerdictFacts) -> tuple[Verdict, str] | None:
    rise = -_saved(facts)
    is_doubtful = _recomputes_at_once(facts) or (_dropped(facts) == 0 and not facts.by_xla)
    least = CLEAR_CHANGE if is_doubtful else COSTLY_RISE
    if rise <= _share_of_peak(facts, least):
        return None
    dropped = _dropped(facts)
    drops = f"the {format_bytes(dropped)} that it drops" if dropped > 0 else "what it drops"
    return Verdict.COSTS_MEMORY, (
        f"the peak rises by {format_bytes(rise)}: the inputs it holds for the recomputation"
        f" outweigh {drops}"
    )


def is_useless(facts: VerdictFacts) -> bool:
    """Return whether the peak falls by too little of what is dropped."""
    ratio = _ratio(facts)
    is_small = _saved(facts) < _share_of_peak(facts, CLEAR_CHANGE)
    if ratio is None:
        return is_small or not facts.by_xla
    return is_small and (ratio < USEFUL_RATIO or _recomputes_at_once(facts))


def _recomputes_at_once(facts: VerdictFacts) -> bool:
    """Return whether all that it drops is made again right away, before anything else can be freed.

    Because of where it is, such a checkpoint saves nothing; a small change comes from the estimate.
    Of XLA's peaks it does not.
    """
    return not facts.by_xla and facts.shape in _BECAUSE and not facts.answers.saves


def _undone(facts: VerdictFacts) -> tuple[Verdict, str] | None:
    site = facts.site
    if site.prevent_cse or site.in_loops or not is_useless(facts) or _dropped(facts) <= 0:
        return None
    if facts.by_xla and _costs_memory(facts):
        return None  # something is left of it
    return Verdict.UNDONE, (
        "with prevent_cse=False and no loop around it, XLA merges the recomputation with the"
        " forward pass and keeps the results from there"
    )


def _saves_nothing(facts: VerdictFacts) -> tuple[Verdict, str] | None:
    if not is_useless(facts):
        return None
    dropped = _dropped(facts)
    if dropped <= 0:
        return Verdict.SAVES_NOTHING, (
            "it drops no residuals: the function is linear or trivial, or its inputs take as much"
        )
    because = None if facts.answers.saves else _BECAUSE.get(facts.shape or "")
    if because is None:
        where = facts.peak_location
        at = f", at {where.file}:{where.line}" if where else ""
        because = f"what it drops is not live at the peak{at}, or is recomputed there"
    return Verdict.SAVES_NOTHING, f"{because}: {_movement(facts)}"


def _movement(facts: VerdictFacts) -> str:
    saved, dropped = _saved(facts), format_bytes(_dropped(facts))
    if saved > 0:
        return f"it drops {dropped} and the peak falls by only {format_bytes(saved)}"
    if saved < 0:
        return f"it drops {dropped} and the peak rises by {format_bytes(-saved)}"
    return f"it drops {dropped} and the peak stays where it is"


_BECAUSE = {
    WHOLE: "it wraps the whole loss, so the backward pass recomputes everything at once",
    LAST_STAGE: "it wraps the last stage, whose residuals are needed as soon as they are made",
    AROUND_LOOP: "it wraps the loop and not its body, so all trips are recomputed at once",
}

_Rule = Callable[[VerdictFacts], tuple[Verdict, str] | None]
_BY_POLICY: tuple[_Rule, ...] = (_matched_nothing, _overridden)
_BY_PEAK: tuple[_Rule, ...] = (_undone, _costs_memory, _saves_nothing)

"""The searches for the findings of a subject, as tables: names, whether any may be there, search.

What is about host memory, or about one of its checkpoints, is not in them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace

from jaxresid.inspector.checkpoints.batched import may_be_batched
from jaxresid.inspector.checkpoints.hidden_names import may_hide_names
from jaxresid.inspector.findings.attention import attention_at_peak
from jaxresid.inspector.findings.collect import Search, free_residuals
from jaxresid.inspector.findings.defeated_policies import defeated_policies
from jaxresid.inspector.findings.donation import (
    MISSING,
    UNUSABLE,
    missing_donation_findings,
    unusable_donation_findings,
)
from jaxresid.inspector.findings.gathered_weights import gathered_weights
from jaxresid.inspector.findings.hidden_names import names_hidden_by_rules
from jaxresid.inspector.findings.jacobians import NAME as COSTLY_MODE
from jaxresid.inspector.findings.logits import logits_at_peak
from jaxresid.inspector.findings.loop_excess import holds_loop, loop_excess
from jaxresid.inspector.findings.loops import (
    Loop,
    stacking_loops,
    stacking_loops_of_step,
    unwrapped_bodies,
)
from jaxresid.inspector.findings.one_hots import NAME as ONE_HOT_MATMUL
from jaxresid.inspector.findings.one_hots import one_hots_at_peak
from jaxresid.inspector.findings.policies import policy_findings
from jaxresid.inspector.findings.proposals import PeakEffect, Proposal, with_compiled
from jaxresid.inspector.findings.vmaps import NAME as VMAP_TOO_WIDE
from jaxresid.inspector.findings.vmaps import least_nbytes, most_saved_nbytes, wide_vmaps
from jaxresid.inspector.findings.whole_activations import whole_activations
from jaxresid.inspector.findings.wide_masks import NAME as MASK_BEFORE_LOOP
from jaxresid.inspector.findings.wide_masks import wide_masks
from jaxresid.inspector.findings.zero_gradients import NEEDLESS, needless_moments_findings
from jaxresid.inspector.memory.lowered import lower
from jaxresid.inspector.memory.peak import peak_nbytes
from jaxresid.inspector.program.build import Program
from jaxresid.inspector.program.unusable_donation import unusable_donations
from jaxresid.inspector.program.zero_gradients import needless_moments
from jaxresid.inspector.subject.base import Subject
from jaxresid.inspector.trace.step import StepTrace
from jaxresid.inspector.variants.rewrites.effects import Rewrites
from jaxresid.results import CompiledChange, Cost, Finding, Report


def about_code(subject: Subject, report: Report) -> Iterator[Search[Finding]]:
    """Yield the searches for findings about its code, to be told of before the proposals."""
    traced, loss, step = subject.trace, subject.holes.alone, subject.step

    def stacking() -> list[Loop]:
        if step is not None:
            return stacking_loops_of_step(step)
        return [] if loss is None else stacking_loops(report, loss)

    yield "undefined-checkpoint-name and unused-checkpoint-name", lambda: policy_findings(traced)
    yield "unwrapped-loop-body", lambda: unwrapped_bodies(report, traced, stacking)
    yield "free-residual", lambda: free_residuals(report)


def proposing(subject: Subject, report: Report) -> Iterator[Search[Proposal]]:
    """Yield the searches for findings whose worth is that of a rewrite.

    On a mesh there are none but those of what is gathered inside `shard_map`, whose types are those
    of one device, and of what a compiler left whole: how it splits what is rewritten is not known.
    """
    traced, profile, live = subject.trace, subject.profile, subject.live
    levels, fun, loss, split = traced.levels, subject.fun, subject.holes.alone, subject.split_again
    has_peak = report.peak is not None
    is_of_one = has_peak and report.mesh is None
    jaxprs = [top.jaxpr for top in traced.tops] if is_of_one else []
    has_checkpoints = is_of_one and traced.has_checkpoints
    maps_much = is_of_one and most_saved_nbytes(subject.temporaries) >= least_nbytes(
        report, profile
    )

    def rewrites() -> Rewrites | None:
        return subject.rewrites

    def rewriting(
        search: Callable[[Rewrites], Iterator[Proposal]],
    ) -> Callable[[], Iterator[Proposal]]:
        def searched() -> Iterator[Proposal]:
            made = subject.rewrites
            return iter(()) if made is None else search(made)

        return searched

    def cost() -> Cost:
        return subject.holes.cost(traced)

    table: tuple[tuple[str, bool, Callable[[], Iterator[Proposal]]], ...] = (
        (
            "logits-at-peak",
            True,
            lambda: logits_at_peak(report, live, levels, profile, rewrites),
        ),
        ("gathered-weights-kept", has_peak, lambda: gathered_weights(report, profile, rewrites)),
        (
            "needless-loop-state",
            holds_loop(*jaxprs),
            rewriting(lambda made: loop_excess(report, levels, profile, made)),
        ),
        (
            f"{VMAP_TOO_WIDE} and {COSTLY_MODE}",
            maps_much,
            lambda: wide_vmaps(report, profile, levels.frames, cost, subject.retraced),
        ),
        (
            ONE_HOT_MATMUL,
            is_of_one,
            lambda: one_hots_at_peak(report, live, levels, jaxprs, rewrites),
        ),
        (
            MASK_BEFORE_LOOP,
            holds_loop(*jaxprs),
            lambda: wide_masks(report, live, levels, profile, rewrites),
        ),
        (
            "attention-scores-at-peak",
            is_of_one,
            lambda: attention_at_peak(report, live, levels, jaxprs, profile, rewrites),
        ),
        (
            "defeated-policy",
            has_checkpoints and may_be_batched(jaxprs),
            rewriting(
                lambda made: defeated_policies(
                    report, levels, made, functools.partial(traced.run_again, fun)
                )
            ),
        ),
        (
            "name-outside-custom-vjp-forward",
            has_checkpoints and may_hide_names(traced.written),
            rewriting(lambda made: names_hidden_by_rules(report, levels, made)),
        ),
    )
    for name, may_be, search in table:
        if may_be:
            yield name, search
    if has_peak and loss is not None and loss.pieces and split is not None:
        yield (
            "activations-left-whole",
            rewriting(
                lambda made: whole_activations(report, loss, subject.program, profile, made, split)
            ),
        )


def about_arguments(
    subject: Subject, report: Report, donating: CompiledChange | None
) -> Iterator[Search[Finding]]:
    """Yield the searches for findings about its arguments, to be told of after the proposals.

    Args:
      subject: the subject.
      report: its report.
      donating: what the compiler says of the missing donation; None where it was not asked.
    """
    step = subject.step
    if step is not None:
        yield UNUSABLE, lambda: _unusable_donation(subject, step, report)
        yield MISSING, lambda: _missing_donation(subject, step, donating)
        yield NEEDLESS, lambda: _needless_moments(subject, step)


def _unusable_donation(subject: Subject, step: StepTrace, report: Report) -> Iterator[Finding]:
    peak = next((c.peak_nbytes for c in report.compiled), None) or (
        None if subject.peak is None else subject.peak.nbytes
    )
    if peak is not None:
        unusable = unusable_donations(step, subject.program)
        yield from unusable_donation_findings(subject.fun, step, unusable, peak)


def _needless_moments(subject: Subject, step: StepTrace) -> Iterator[Finding]:
    if subject.peak is None:
        return
    found = needless_moments(step, subject.program)
    if found is None:
        return
    nbytes = peak_nbytes(lower(found.program, subject.profile))
    around = subject.interval(nbytes, found.program)
    effect = PeakEffect(subject.peak.nbytes, nbytes, "estimate", around)
    yield from needless_moments_findings(subject.fun, step, found, effect)


def _missing_donation(
    subject: Subject, step: StepTrace, donating: CompiledChange | None
) -> Iterator[Finding]:
    found = subject.missing_donation
    if found is None:
        return
    effect = _donation_effect(subject, found.program)
    if donating is not None and donating.verdict == "confirmed":
        before, after = donating.peak_before_nbytes, donating.peak_nbytes
        assert before is not None
        assert after is not None
        effect = PeakEffect(before, after, "xla")
    if effect is None:
        return
    for finding in missing_donation_findings(subject.fun, step, found, effect):
        yield finding if donating is None else with_compiled(finding, donating)


def _donation_effect(subject: Subject, program: Program) -> PeakEffect | None:
    """Return what a program with the same kernels does to the estimated peak, if there is one.

    Args:
      subject: the subject.
      program: the program, in which outputs take over other buffers.
    """
    if subject.peak is None:
        return None
    nbytes = peak_nbytes(replace(subject.lowered, program=program))
    around = subject.interval(nbytes, program)
    return PeakEffect(subject.peak.nbytes, nbytes, "estimate", around)

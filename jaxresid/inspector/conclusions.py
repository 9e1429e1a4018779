"""Complete a report by what follows from all of its figures."""

from __future__ import annotations

from dataclasses import replace

from jaxresid.base.crashes import Crash
from jaxresid.inspector.findings.collect import collected
from jaxresid.inspector.findings.proposals import Proposal
from jaxresid.inspector.findings.registry import about_arguments, about_code, proposing
from jaxresid.inspector.next_step import next_step
from jaxresid.inspector.subject.base import Inspection, Subject
from jaxresid.results import Cost, Finding, KeptBeyondPeak, Mark, Phases, Report
from jaxresid.xla.places import why_unavailable


def concluded(inspection: Inspection, words: tuple[str, ...]) -> Inspection:
    """Return an inspection with the findings of its report, and the one thing to do next.

    What XLA says is in its report, if it was asked.
    """
    subject, report = inspection.subject, inspection.report
    findings: tuple[Finding, ...] = ()
    if not subject.is_dead:
        crashes: list[Crash] = []
        code = collected(about_code(subject, report), crashes)
        proposals = inspection.proposals
        if proposals is None:
            proposals = tuple(collected(proposing(subject, report), crashes))
        others = collected(about_arguments(subject, report, inspection.donating), crashes)
        inspection = replace(inspection, proposals=proposals).with_crashes(crashes)
        findings = (*code, *(proposal.finding for proposal in proposals), *others)
    report = replace(inspection.report, findings=(*inspection.host_findings, *findings))
    following = next_step(
        report,
        words,
        proposals=inspection.proposals or (),
        is_dead=subject.is_dead,
        why_uncompiled=lambda: why_unavailable(subject.place),
    )
    return replace(inspection, report=replace(report, next_step=following))


def rewrite_proposals(subject: Subject, crashes: list[Crash]) -> tuple[Proposal, ...]:
    """Return the findings whose worth is that of a rewrite, without a report of the subject.

    What its checkpoints are worth, which takes long to tell, they do not read.

    Args:
      crashes: where findings that crash are recorded.
    """
    report = Report(
        target=subject.target,
        jax=subject.jax,
        place=subject.place_info,
        residuals=subject.residuals,
        cost=Phases(Cost(), Cost(), Cost()),
        peak=subject.peak,
        mesh=subject.mesh,
    )
    return tuple(collected(proposing(subject, report), crashes))


def kept_beyond_peak(report: Report) -> KeptBeyondPeak | None:
    """Return why more is kept than the peak; None where it is not more, or there is no estimate."""
    kept = report.totals.computed_nbytes
    if report.peak is None or kept <= report.peak.nbytes:
        return None
    left = kept - dict(report.peak.breakdown).get("residual", 0)
    by_mark = dict.fromkeys((Mark.DUPLICATE, Mark.FREE, Mark.UNREAD), 0)
    for residual in report.residuals:
        if residual.origin.kind == "computed" and residual.aval.memory == "device":
            mark = next((mark for mark in by_mark if mark in residual.marks), None)
            if mark is not None:
                by_mark[mark] += residual.nbytes
    for mark, nbytes in by_mark.items():
        by_mark[mark] = min(nbytes, left)
        left -= by_mark[mark]
    return KeptBeyondPeak(
        kept_nbytes=kept,
        at_peak_nbytes=kept - left - sum(by_mark.values()),
        duplicate_nbytes=by_mark[Mark.DUPLICATE],
        free_nbytes=by_mark[Mark.FREE],
        unread_nbytes=by_mark[Mark.UNREAD],
        other_nbytes=left,
    )

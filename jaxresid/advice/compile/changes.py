"""Ask a compiler about the changes that findings propose: each is made, and compiled."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from jaxresid.advice.compile.limited import LimitedCompiles, too_late, why_no_peak
from jaxresid.advice.compile.rows import PolicyProgram
from jaxresid.base.crashes import Crash
from jaxresid.base.errors import RetraceError
from jaxresid.inspector.findings.collect import collected
from jaxresid.inspector.findings.donation import MISSING
from jaxresid.inspector.findings.proposals import (
    Changed,
    Proposal,
    compiled_change,
    with_compiled,
)
from jaxresid.inspector.subject.base import Inspection, gc_paused
from jaxresid.results import Compiled, CompiledChange, Finding

# So many rewrites are compiled, at most.
MOST_REWRITES = 10
_ONLY_SOME = f"only {MOST_REWRITES} changes are compiled"
_REFUSED = "JAX cannot differentiate the whole program with the change"


@dataclass(frozen=True, slots=True, eq=False)
class ChangedProgram:
    """The program with a proposed change; `proposal` is None for a missing donation."""

    proposal: Proposal | None
    program: PolicyProgram


def changed_programs(inspection: Inspection, crashes: list[Crash]) -> tuple[ChangedProgram, ...]:
    """Return the program with each of the changes that findings propose, as far as JAX makes it.

    Args:
      crashes: gets the crash of each change that an error of our own ends.
    """
    subject = inspection.subject
    if subject.is_dead:
        return ()

    def made(proposal: Proposal) -> Iterator[ChangedProgram]:
        # The finding's own figures may be those of a few layers.
        with contextlib.suppress(RetraceError):
            changed = proposal.changed()
            yield ChangedProgram(proposal, _program(proposal.finding.name, changed))

    with gc_paused(), subject.tracing():
        searches = [
            (f"the change of {proposal.finding.name}", functools.partial(made, proposal))
            for proposal in (inspection.proposals or ())[:MOST_REWRITES]
        ]
        programs = collected(searches, crashes)
    missing = subject.missing_donation
    if missing is not None:
        changed = Changed(missing.step, missing.program)
        programs.append(ChangedProgram(None, _program(MISSING, changed)))
    return tuple(programs)


def judged_alone(inspection: Inspection, proposal: Proposal, compiles: LimitedCompiles) -> Finding:
    """Return the finding of a proposal that was made after the program was compiled, judged."""
    on, row = inspection.subject.place.text, inspection.report.compiled[0]
    try:
        with gc_paused(), inspection.subject.tracing():
            program = _program(proposal.finding.name, proposal.changed())
    except RetraceError:
        unconfirmed = CompiledChange(on, "unconfirmed", reason=_REFUSED)
        return with_compiled(proposal.finding, unconfirmed)
    (changed,) = compiles.compiled([program])
    return with_compiled(proposal.finding, _judged(on, proposal, row, changed, too_late(compiles)))


def with_changes_judged(
    inspection: Inspection,
    changes: Sequence[ChangedProgram],
    row: Compiled | None,
    rows: Sequence[Compiled | None],
    late: str,
) -> Inspection:
    """Return an inspection whose findings say what a compiler says of the changes they propose.

    Args:
      row: what it says of the program as it is; None where there was no time for that.
      rows: what it says of each change; None where there was no time for that.
      late: what to say where there was no time.
    """
    on = inspection.subject.place.text
    judgements = {
        change.proposal: _judged(on, change.proposal, row, changed, late)
        for change, changed in zip(changes, rows, strict=True)
    }
    proposals = []
    for number, proposal in enumerate(inspection.proposals or ()):
        reason = _REFUSED if number < MOST_REWRITES else _ONLY_SOME
        judged = judgements.get(proposal, CompiledChange(on, "unconfirmed", reason=reason))
        proposals.append(replace(proposal, finding=with_compiled(proposal.finding, judged)))
    return replace(inspection, proposals=tuple(proposals), donating=judgements.get(None))


def _program(finding: str, changed: Changed) -> PolicyProgram:
    return PolicyProgram(f"without {finding}", changed.trace, changed.program, asks_fit=False)


def _judged(
    on: str, proposal: Proposal | None, row: Compiled | None, changed: Compiled | None, late: str
) -> CompiledChange:
    before = None if row is None else row.peak_nbytes
    after = None if changed is None else changed.peak_nbytes
    if before is None:
        reason = why_no_peak("as it is", row, late)
    else:
        reason = why_no_peak("with the change", changed, late)
    if proposal is None:
        return compiled_change(on, before, after, reason)
    return compiled_change(on, before, after, reason, proposal.gain, proposal.limit_nbytes)

"""Ask a compiler about the changes that findings propose: each is made, and compiled."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from jaxresid.advice.compile.ahead_of_time import PolicyProgram
from jaxresid.advice.compile.limited import LimitedCompiles
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
    """The program with the change of a finding.

    Attributes:
      proposal: the finding; None: that of what a step does not donate.
      program: the program.
    """

    proposal: Proposal | None
    program: PolicyProgram


def changed_programs(inspection: Inspection, crashes: list[Crash]) -> tuple[ChangedProgram, ...]:
    """Return the program with each of the changes that findings propose, as far as JAX makes it.

    Args:
      inspection: the inspection, with its findings.
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
            (f"the change of {each.finding.name}", functools.partial(made, each))
            for each in (inspection.proposals or ())[:MOST_REWRITES]
        ]
        found = collected(searches, crashes)
    missing = subject.missing_donation
    if missing is not None:
        changed = Changed(missing.step, missing.program)
        found.append(ChangedProgram(None, _program(MISSING, changed)))
    return tuple(found)


def too_late(compiles: LimitedCompiles) -> str:
    """Return why what was not compiled was not, if that was for want of time."""
    return f"took longer than {compiles.limit_s:g} s, which is all the time that compiling may take"


def judged_alone(inspection: Inspection, proposal: Proposal, compiles: LimitedCompiles) -> Finding:
    """Return the finding of a proposal that was made after the program was compiled, judged.

    Args:
      inspection: the inspection, with what the compiler says of the program as it is.
      proposal: the proposal.
      compiles: the compiles that were asked then.
    """
    on, row = inspection.subject.place.text, inspection.report.compiled[0]
    try:
        with gc_paused(), inspection.subject.tracing():
            program = _program(proposal.finding.name, proposal.changed())
    except RetraceError:
        said = CompiledChange(on, "unconfirmed", reason=_REFUSED)
        return with_compiled(proposal.finding, said)
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
      inspection: the inspection, with its findings.
      changes: the changes that the compiler was asked about.
      row: what it says of the program as it is; None where there was no time for that.
      rows: what it says of each change; None where there was no time for that.
      late: what to say where there was no time.
    """
    on = inspection.subject.place.text
    said = {
        change.proposal: _judged(on, change.proposal, row, changed, late)
        for change, changed in zip(changes, rows, strict=True)
    }
    proposals = []
    for number, proposal in enumerate(inspection.proposals or ()):
        reason = _REFUSED if number < MOST_REWRITES else _ONLY_SOME
        judged = said.get(proposal, CompiledChange(on, "unconfirmed", reason=reason))
        proposals.append(replace(proposal, finding=with_compiled(proposal.finding, judged)))
    return replace(inspection, proposals=tuple(proposals), donating=said.get(None))


def _program(finding: str, changed: Changed) -> PolicyProgram:
    return PolicyProgram(f"without {finding}", changed.trace, changed.program, asks_fit=False)


def _judged(
    on: str, proposal: Proposal | None, row: Compiled | None, changed: Compiled | None, late: str
) -> CompiledChange:
    """Return what a compiler says of a change, or the reason why it says nothing."""
    before = None if row is None else row.peak_nbytes
    after = None if changed is None else changed.peak_nbytes
    found, which = (row, "as it is") if before is None else (changed, "with the change")
    why = late if found is None else found.error or "XLA reports no peak"
    reason = f"the program {which} was not compiled: {why}"
    if proposal is None:
        return compiled_change(on, before, after, reason)
    return compiled_change(on, before, after, reason, proposal.gain, proposal.limit_nbytes)

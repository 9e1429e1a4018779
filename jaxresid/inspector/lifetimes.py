"""Add the lifetimes of all values to a report: of the program, and without each checkpoint."""

from __future__ import annotations

from dataclasses import replace

from jaxresid.base.errors import JaxresidError
from jaxresid.inspector.subject.base import Inspection
from jaxresid.results import without_names


def with_lifetimes(inspection: Inspection) -> Inspection:
    """Return an inspection with the lifetimes of all values in its report.

    They are those of the program, and then those without each of its checkpoints for which that
    program can be made.
    """
    subject, report = inspection.subject, inspection.report
    made = [subject.lifetimes()]
    names = without_names(report.checkpoints)
    for name, judged in zip(names, inspection.judged, strict=True):
        if judged.judgement is None:
            continue
        try:
            without = judged.judgement.without()
        except JaxresidError:  # its figures were told by those of others
            continue
        made.append(subject.lifetimes_of(without.program, without.trace, name))
    return replace(inspection, report=replace(report, lifetimes=tuple(made)))

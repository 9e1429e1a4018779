"""What `plan --emit` gives: a plan as the settings of a framework."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxresid.advice.plan.emit.modules import OnModules
from jaxresid.advice.plan.emit.stacked import OnStacks
from jaxresid.advice.plan.emit.treatments import place_text
from jaxresid.advice.plan.source.file_edits import FileEdit
from jaxresid.advice.plan.source.observed_calls import (
    ObservedCalls,
    calls_of,
    observe_calls,
    target_argument_kinds,
)
from jaxresid.advice.plan.source.writing import plan_edits
from jaxresid.advice.plan.verification import retrace
from jaxresid.base.errors import InputsError
from jaxresid.base.option_types import Framework
from jaxresid.inspector.subject.base import Subject
from jaxresid.results import PlannedSite

_RENAMES = (
    "without a name= of its own a module of a class under nn.remat is called CheckpointBlock_0, not"
    " Block_0, and its parameters with it; --diff keeps their names"
)


@dataclass(frozen=True, slots=True)
class ModuleSettings:
    """The settings of a framework's modules that carry out a plan.

    Attributes:
      edits: The files with the settings in them.
      unsaid: What of the plan they do not say, a line each.
      remarks: What else to know of them.
    """

    edits: tuple[FileEdit, ...]
    unsaid: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


def on_modules(
    sites: Sequence[PlannedSite], library: Framework, subject: Subject
) -> ModuleSettings:
    """Return a plan as settings of a framework's modules.

    Args:
      sites: What the plan does at each place.
      library: The framework.
      subject: The traced function that the plan was made for.

    Raises:
      InputsError: The plan changes nothing of that framework, or nothing of it can be written.
    """
    write = OnStacks() if library == "haliax" else OnModules(library)
    if isinstance(write, OnStacks):
        sites = write.joined(sites)
    changed = [site for site in sites if site.changed]
    wanted = calls_of(changed, subject.frames.cwd)
    calls = ObservedCalls(
        target_argument_kinds(subject.trace.arguments),
        observe_calls(wanted, lambda: retrace(subject)) if wanted else {},
    )
    found = plan_edits(sites, subject, calls, write)
    if not found.edits:
        lines = ("the plan cannot be written:", *found.problems)
        raise InputsError("\n  ".join(lines) if found.problems else "the plan changes nothing")
    if not (write.written or any(site.kind == "checkpoint" for site in changed)):
        places = ", ".join(place_text(site) for site in changed)
        raise InputsError(
            f"no place of the plan is in a module of {library}: {places}; plan --diff writes it"
        )
    renames = (_RENAMES,) if library == "linen" and write.written else ()
    return ModuleSettings(found.edits, (*write.unsaid, *found.problems), renames)

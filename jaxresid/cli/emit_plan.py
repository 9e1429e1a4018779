"""Show a plan as the settings of a framework, and trace the target with them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jaxresid.base.errors import InputsError
from jaxresid.base.text.units import format_bytes
from jaxresid.cli.verify_edit import figures_of_edited

if TYPE_CHECKING:
    from jaxresid.advice.plan.verification import PlanFigures
    from jaxresid.base.option_types import Framework
    from jaxresid.cli.options.inputs import TargetOptions
    from jaxresid.inspector.subject.base import Subject
    from jaxresid.results import Plan


@dataclass(frozen=True, slots=True)
class Shown:
    """A plan as the settings of a framework, as it is printed.

    Attributes:
      plan: The plan, verified where the settings were traced and hold what it promises.
      text: What to paste.
      said: What to know of it, a line each.
      fits: Whether it is known to fit the budget.
    """

    plan: Plan
    text: str
    said: tuple[str, ...]
    fits: bool


def emitted(plan: Plan, library: Framework, options: TargetOptions) -> Shown:
    """Return a plan as settings of a framework, traced with them.

    Raises:
      InputsError: They do not carry it out, or cannot be traced.
    """
    count = plan.selection.configuration.microbatches
    if library == "maxtext":
        return _as_configuration(plan, _subject(options, count))
    if library == "keras":
        return _as_scope(plan, _subject(options, count), options)
    from jaxresid.advice.plan.emit.emitted import on_modules
    from jaxresid.advice.plan.source.snippets import code

    made = on_modules(plan.sites, library, _subject(options))
    found = figures_of_edited(made.edits, options, count, plan.plain_flops)
    if isinstance(found, str):
        reasons = "\n  ".join((found, *made.unsaid))
        raise InputsError(f"the code with these settings cannot be traced: {reasons}")
    text = "\n".join(code(made.edits)) + "\n"
    return _shown(plan, text, found, made.unsaid, made.remarks)


def _as_configuration(plan: Plan, subject: Subject) -> Shown:
    from jaxresid.advice.plan.emit.maxtext import figures_with, maxtext_settings

    made = maxtext_settings(plan)
    found = figures_with(made.policy, plan, subject)
    remark = "traced with the policy that MaxText makes of them, in place of the present one"
    return _shown(plan, made.text, found, made.unsaid, (remark,))


def _as_scope(plan: Plan, subject: Subject, options: TargetOptions) -> Shown:
    from jaxresid.advice.plan.emit.keras import keras_settings

    made = keras_settings(plan, subject)
    count = plan.selection.configuration.microbatches
    found = figures_of_edited((), options, count, plan.plain_flops, made.names)
    if isinstance(found, str):
        reasons = "\n  ".join((found, *made.unsaid))
        raise InputsError(f"the model with these layers cannot be traced: {reasons}")
    remark = "these are the names that the layers have now; Keras numbers them as they are made"
    return _shown(plan, made.text, found, made.unsaid, (remark,))


def _subject(options: TargetOptions, microbatches: int = 1) -> Subject:
    from jaxresid.cli.options.inputs import subject_of

    traced = subject_of(options)[0]
    if microbatches == 1:
        return traced
    from jaxresid.advice.plan.joint.microbatches import in_microbatches

    return in_microbatches(traced, microbatches)


def _shown(
    plan: Plan, text: str, found: PlanFigures, unsaid: Sequence[str], remarks: Sequence[str]
) -> Shown:
    """Return settings as they are printed, with the figures that they gave beside the plan's."""
    from jaxresid.advice.plan.verification import keeps_to

    promised = _promised(plan, found)
    traced = f"traced with these settings: {_figures_text(found)}"
    if keeps_to(found, promised) or _figures_text(found) == _figures_text(promised):
        verified = dataclasses.replace(plan, verified=True, doubt=None)
        return Shown(verified, text, (f"{traced}, as planned", *remarks), plan.fits)
    instead = f"instead of the plan's: {_figures_text(promised)}"
    if not plan.unwritten:
        instead += "; --diff has the plan itself"
    within = found.peak_nbytes <= promised.peak_nbytes
    return Shown(plan, text, (*unsaid, traced, instead, *remarks), plan.fits and within)


def _promised(plan: Plan, found: PlanFigures) -> PlanFigures:
    """Return the figures of a plan; the peak of a trace is none of a plan for a CPU."""
    peak = found.peak_nbytes if plan.estimate_nbytes is None else plan.estimate_nbytes
    return dataclasses.replace(
        found,
        peak_nbytes=peak,
        kept_nbytes=plan.kept_nbytes,
        host_nbytes=plan.host_nbytes,
        recompute_flops=plan.recompute_flops,
    )


def _figures_text(figures: PlanFigures) -> str:
    share = figures.recompute_flops / figures.plain_flops if figures.plain_flops else 0.0
    host = f", {format_bytes(figures.host_nbytes)} in host memory" if figures.host_nbytes else ""
    return (
        f"kept {format_bytes(figures.kept_nbytes)}{host}, peak about"
        f" {format_bytes(figures.peak_nbytes)}, {share:.1%} recomputed"
    )

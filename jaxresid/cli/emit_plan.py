"""Show a plan as the settings of a framework, and trace the target with them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jaxresid.base.errors import InputsError
from jaxresid.base.text.units import format_bytes
from jaxresid.cli.verify_edit import figures_of_edited, promised_figures

if TYPE_CHECKING:
    from jaxresid.advice.plan.verification import PlanFigures
    from jaxresid.base.option_types import Framework
    from jaxresid.cli.options.request import Request
    from jaxresid.inspector.subject.base import Subject
    from jaxresid.results import Plan


@dataclass(frozen=True, slots=True)
class Shown:
    """A plan as the settings of a framework, as it is printed; `fits` if it is known to."""

    plan: Plan
    text: str
    remarks: tuple[str, ...]
    fits: bool


def emitted(plan: Plan, library: Framework, request: Request) -> Shown:
    """Return a plan as settings of a framework, traced with them."""
    count = plan.selection.configuration.microbatches
    if library == "maxtext":
        return _as_configuration(plan, _subject(request, count))
    if library == "keras":
        return _as_scope(plan, _subject(request, count), request)
    from jaxresid.advice.plan.emit.emitted import on_modules
    from jaxresid.advice.plan.source.snippets import code

    settings = on_modules(plan.sites, library, _subject(request))
    figures = figures_of_edited(settings.edits, request, count, plan.plain_flops)
    if isinstance(figures, str):
        raise _untraced("code with these settings", figures, settings.unsaid)
    text = "\n".join(code(settings.edits)) + "\n"
    return _shown(plan, text, figures, settings.unsaid, settings.remarks)


def _as_configuration(plan: Plan, subject: Subject) -> Shown:
    from jaxresid.advice.plan.emit.maxtext import figures_with, maxtext_settings

    settings = maxtext_settings(plan)
    figures = figures_with(settings.policy, plan, subject)
    remark = "traced with the policy that MaxText makes of them, in place of the present one"
    return _shown(plan, settings.text, figures, settings.unsaid, (remark,))


def _as_scope(plan: Plan, subject: Subject, request: Request) -> Shown:
    from jaxresid.advice.plan.emit.keras import keras_settings

    settings = keras_settings(plan, subject)
    count = plan.selection.configuration.microbatches
    figures = figures_of_edited((), request, count, plan.plain_flops, settings.names)
    if isinstance(figures, str):
        raise _untraced("model with these layers", figures, settings.unsaid)
    remark = "these are the names that the layers have now; Keras numbers them as they are made"
    return _shown(plan, settings.text, figures, settings.unsaid, (remark,))


def _untraced(what: str, error: str, unsaid: Sequence[str]) -> InputsError:
    return InputsError("\n  ".join((f"the {what} cannot be traced: {error}", *unsaid)))


def _subject(request: Request, microbatches: int = 1) -> Subject:
    from jaxresid.cli.resolve import subject_of

    traced = subject_of(request)
    if microbatches == 1:
        return traced
    from jaxresid.advice.plan.joint.microbatches import in_microbatches

    return in_microbatches(traced, microbatches)


def _shown(
    plan: Plan, text: str, figures: PlanFigures, unsaid: Sequence[str], remarks: Sequence[str]
) -> Shown:
    """Return settings as they are printed, with the figures that they gave beside the plan's."""
    from jaxresid.advice.plan.verification import keeps_to

    promised = promised_figures(plan, figures)
    traced = f"traced with these settings: {_figures_text(figures)}"
    if keeps_to(figures, promised) or _figures_text(figures) == _figures_text(promised):
        verified = dataclasses.replace(plan, verified=True, doubt=None)
        return Shown(verified, text, (f"{traced}, as planned", *remarks), plan.fits)
    instead = f"instead of the plan's: {_figures_text(promised)}"
    if not plan.unwritten:
        instead += "; --diff has the plan itself"
    within = figures.peak_nbytes <= promised.peak_nbytes
    return Shown(plan, text, (*unsaid, traced, instead, *remarks), plan.fits and within)


def _figures_text(figures: PlanFigures) -> str:
    share = figures.recompute_flops / figures.plain_flops if figures.plain_flops else 0.0
    host = f", {format_bytes(figures.host_nbytes)} in host memory" if figures.host_nbytes else ""
    return (
        f"kept {format_bytes(figures.kept_nbytes)}{host}, peak about"
        f" {format_bytes(figures.peak_nbytes)}, {share:.1%} recomputed"
    )

"""Word the finding about arguments that a program returns updated and does not donate."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from jaxresid.base.text.units import format_bytes
from jaxresid.inspector.call.jitted_by import JittedFunction, definition, jitted_function
from jaxresid.inspector.findings.proposals import PeakEffect, with_compiled
from jaxresid.inspector.findings.search import FindingContext, FindingSearch
from jaxresid.inspector.memory.peak import peak_nbytes
from jaxresid.inspector.program.build import Program
from jaxresid.inspector.program.donation import (
    StepArgument,
    is_changed_in_place,
    step_arguments,
)
from jaxresid.inspector.trace.step import StepTrace
from jaxresid.results import NOWHERE, Finding, Source

MISSING = "missing-donation"


def missing_donations(context: FindingContext) -> Iterator[Finding]:
    """Yield the finding about arguments that a step returns updated, if it is worth saying."""
    fun, step, missing = context.subject.fun, context.subject.step, context.subject.missing_donation
    if step is None or missing is None:
        return
    effect = _donation_effect(context, missing.program)
    if effect is None or not effect.is_worth_saying:
        return
    called = jitted_function(fun)
    names = [a.name for a in missing.arguments]
    these = "it" if len(names) == 1 else "them"
    unjitted = "" if called.by else f", and {called.name} is not jitted here"
    finding = Finding(
        MISSING,
        f"{called.name} returns {_listed(missing.arguments)} updated and does not donate"
        f" {these}{unjitted}: the {format_bytes(missing.nbytes)} of old values are in memory beside"
        f" the new ones. With {these} donated {effect.text}",
        source_of_step(fun, step),
        help=f"{_code(called, step, missing.arguments)}, if the caller does not read the old"
        f" {_joined(names)} after the call",
        measured={
            "arguments": names,
            "argnums": [a.position for a in missing.arguments],
            "nbytes": missing.nbytes,
            **effect.measured,
        },
    )
    donating = context.donating
    yield finding if donating is None else with_compiled(finding, donating)


def _donation_effect(context: FindingContext, program: Program) -> PeakEffect | None:
    """Return what a donation does to the peak, by XLA where it confirmed that.

    Args:
      context: what is searched.
      program: the program with it, in which outputs take over other buffers.
    """
    donating, subject = context.donating, context.subject
    if donating is not None and donating.verdict == "confirmed":
        assert donating.peak_before_nbytes is not None
        assert donating.peak_nbytes is not None
        return PeakEffect(donating.peak_before_nbytes, donating.peak_nbytes, "xla")
    if subject.peak is None:
        return None
    nbytes = peak_nbytes(replace(subject.lowered, program=program))
    around = subject.interval(nbytes, program)
    return PeakEffect(subject.peak.nbytes, nbytes, "estimate", around)


def _listed(arguments: Sequence[StepArgument]) -> str:
    """Return arguments in words: `params (argument 0) and state (argument 1)`."""
    return _joined(
        [a.name if a.position is None else f"{a.name} (argument {a.position})" for a in arguments]
    )


def _joined(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def source_of_step(fun: Callable[..., Any], step: StepTrace) -> Source:
    """Return where the step is defined, with its path as the report shows paths."""
    where = definition(fun)
    if where is None:
        return NOWHERE
    return Source(replace(where, file=where.file.removeprefix(step.frames.cwd)))


def _code(called: JittedFunction, step: StepTrace, missing: Sequence[StepArgument]) -> str:
    """Return the call that jits a step so that it donates these arguments and what it does."""
    if called.by == "equinox":
        return _equinox_code(called, step, missing)
    donated = [a for a in step_arguments(step) if a in missing or a.donated_by(step)]
    positions = [a.position for a in donated]
    if called.is_bound or None in positions:
        names = ", ".join(f'"{a.name}"' for a in donated) + "," * (len(donated) == 1)
        option = f"donate_argnames=({names})"
    else:
        option = f"donate_argnums=({', '.join(map(str, positions))}{',' * (len(donated) == 1)})"
    if called.by == "pmap":
        return f"jax.pmap({called.name}, ..., {option})"
    is_nnx = called.by == "nnx" or (
        called.by is None and any(is_changed_in_place(step, a) for a in missing)
    )
    return f"{'nnx' if is_nnx else 'jax'}.jit({called.name}, {option})"


def _equinox_code(called: JittedFunction, step: StepTrace, missing: Sequence[StepArgument]) -> str:
    others = [a for a in step_arguments(step) if a not in missing and not a.donated_by(step)]
    if others and (called.is_bound or len(others) > 1 or others[0].position != 0):
        names = _joined([a.name for a in others])
        return (
            f'eqx.filter_jit({called.name}, donate="all"), which gives {names} away as well (with'
            f' {names} in the first argument, donate="all-except-first" keeps it)'
        )
    which = "all-except-first" if others or called.is_bound else "all"
    return f'eqx.filter_jit({called.name}, donate="{which}")'


SEARCH = FindingSearch([MISSING], "arguments", 2, missing_donations)

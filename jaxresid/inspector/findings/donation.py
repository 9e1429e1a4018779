"""Word the findings about the donation of a program's arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from jaxresid.base.text.units import format_bytes
from jaxresid.inspector.call.jitted_by import JittedFunction, definition, jitted_function
from jaxresid.inspector.findings.proposals import WORTH_SAYING, PeakEffect
from jaxresid.inspector.program.donation import (
    MissingDonation,
    StepArgument,
    is_changed_in_place,
    step_arguments,
)
from jaxresid.inspector.program.ops import Value
from jaxresid.inspector.program.unusable_donation import UnusableLeaf
from jaxresid.inspector.trace.step import StepTrace
from jaxresid.results import NOWHERE, Finding, Source

MISSING = "missing-donation"
UNUSABLE = "unusable-donation"


def missing_donation_findings(
    fun: Callable[..., Any], step: StepTrace, found: MissingDonation, effect: PeakEffect
) -> Iterator[Finding]:
    """Yield the finding about arguments that a step returns updated, if it is worth saying.

    Args:
      fun: the step as the user has it.
      step: its trace.
      found: the arguments that it could give away.
      effect: what that does to the peak.
    """
    if not effect.is_worth_saying:
        return
    called = jitted_function(fun)
    names = [a.name for a in found.arguments]
    these = "it" if len(names) == 1 else "them"
    unjitted = "" if called.by else f", and {called.name} is not jitted here"
    yield Finding(
        MISSING,
        f"{called.name} returns {_listed(found.arguments)} updated and does not donate"
        f" {these}{unjitted}: the {format_bytes(found.nbytes)} of old values are in memory beside"
        f" the new ones. With {these} donated {effect.text}",
        source_of_step(fun, step),
        help=f"{_code(called, step, found.arguments)}, if the caller does not read the old"
        f" {_joined(names)} after the call",
        measured={
            "arguments": names,
            "argnums": [a.position for a in found.arguments],
            "nbytes": found.nbytes,
            **effect.measured,
        },
    )


def unusable_donation_findings(
    fun: Callable[..., Any], step: StepTrace, leaves: Sequence[UnusableLeaf], peak_nbytes: int
) -> Iterator[Finding]:
    """Yield the finding about donated arrays that no output takes over, if they are big enough.

    Args:
      fun: the step as the user has it.
      step: its trace.
      leaves: the arrays.
      peak_nbytes: the peak, in bytes.
    """
    called = jitted_function(fun)
    if called.by == "equinox":  # which donates batches with the rest, and says nothing of them
        leaves = [leaf for leaf in leaves if leaf.output is not None]
    nbytes = sum(leaf.value.nbytes for leaf in leaves)
    if not leaves or nbytes < WORTH_SAYING * peak_nbytes:
        return
    each = sorted(leaves, key=lambda leaf: -leaf.value.nbytes)
    listed = "; ".join(map(_unusable, each[:3]))
    more = f"; and {len(each) - 3} more" if len(each) > 3 else ""
    helps = []
    if any(leaf.output is not None for leaf in leaves):
        helps.append("return the new values in the shape and dtype of the old ones")
    if any(leaf.output is None for leaf in leaves):
        helps.append("do not donate what does not come back")
    yield Finding(
        UNUSABLE,
        f"{called.name} donates {format_bytes(nbytes)} that no output can take over, so this saves"
        f" nothing: {listed}{more}",
        source_of_step(fun, step),
        help=", and ".join(helps),
        measured={
            "nbytes": nbytes,
            "peak_nbytes": peak_nbytes,
            "leaves": [leaf.path for leaf in leaves],
            "avals": [_aval(leaf.value) for leaf in leaves],
            "outputs": [leaf.output_path or None for leaf in leaves],
        },
    )


def _unusable(leaf: UnusableLeaf) -> str:
    """Return why an array is not taken over, in words."""
    text = f"{leaf.path} {_aval(leaf.value)}"
    if leaf.output is None:
        return f"{text} does not come back"
    if _aval(leaf.output) != _aval(leaf.value):
        return f"{text} comes back as {_aval(leaf.output)} ({leaf.output_path})"
    if leaf.output.memory != leaf.value.memory:
        return f"{text} comes back in {leaf.output.memory} memory ({leaf.output_path})"
    return f"{text}: another donated array has taken its output ({leaf.output_path})"


def _aval(v: Value) -> str:
    return f"{v.dtype}[{','.join(map(str, v.shape))}]"


def _listed(arguments: Sequence[StepArgument]) -> str:
    """Return arguments in words: `params (argument 0) and state (argument 1)`."""
    return _joined(
        [a.name if a.position is None else f"{a.name} (argument {a.position})" for a in arguments]
    )


def _joined(each: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(each[:-1]), each[-1]]))


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
    given = [a for a in step_arguments(step) if a in missing or a.donated_by(step)]
    positions = [a.position for a in given]
    if called.is_bound or None in positions:
        names = ", ".join(f'"{a.name}"' for a in given) + "," * (len(given) == 1)
        option = f"donate_argnames=({names})"
    else:
        option = f"donate_argnums=({', '.join(map(str, positions))}{',' * (len(given) == 1)})"
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

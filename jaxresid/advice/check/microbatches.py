"""Find batches that do not fit in one piece, and tell in how many microbatches they would.

Each number of microbatches is the program traced again with the batch of one, its gradients added
up in a scan: what `plan --microbatches` plans for.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jaxresid import jax_compat
from jaxresid.advice.plan.floor.parts import argument_name
from jaxresid.advice.plan.floor.reliefs import Batch, batch_of
from jaxresid.advice.plan.joint.microbatches import divided, in_microbatches
from jaxresid.base.errors import RetraceError
from jaxresid.base.text.units import format_bytes
from jaxresid.inspector.findings.proposals import WORTH_SAYING, Changed, Proposal, kept_change
from jaxresid.inspector.jaxpr.nesting import eqns_in
from jaxresid.inspector.subject.base import Inspection, Subject, gc_paused
from jaxresid.inspector.trace.retracing import retracing
from jaxresid.inspector.variants.choices import Variant
from jaxresid.jax_compat.jaxpr_types import Eqn, Jaxpr
from jaxresid.results import NOWHERE, Answer, Finding, Interval, Report, answer

NAME = "whole-batch-at-once"
# Microbatches; with more an accelerator has little to do in each.
_MOST = 64


@dataclass(frozen=True, slots=True)
class _Divided:
    """The program in some number of microbatches.

    Attributes:
      count: the number.
      nbytes: its estimated peak.
      interval: the interval around that.
      kept_nbytes: what the backward pass of one microbatch keeps.
      fits: whether it fits the budget.
    """

    count: int
    nbytes: int
    interval: Interval | None
    kept_nbytes: int
    fits: Answer


def microbatch_proposals(inspection: Inspection, limit_nbytes: int | None) -> Iterator[Proposal]:
    """Yield the finding about a batch that does not surely fit at once, and would in microbatches.

    Args:
      inspection: the inspected function or step.
      limit_nbytes: the bytes that its peak may have; None: those of the place.
    """
    subject, report = inspection.subject, inspection.report
    budget = limit_nbytes or report.place.memory_nbytes
    if budget is None or report.peak is None or _fits(report, budget):
        return
    if subject.is_dead or not report.target.has_gradient:
        return
    batch = batch_of(subject)
    if batch is None:
        return
    with gc_paused(), subject.tracing():
        tried = _tried(subject, batch, report.peak.nbytes, budget)
    if tried:
        chosen = tried[-1]
        yield Proposal(
            _finding(report, subject, batch, tried, budget),
            lambda: _changed(subject, chosen.count),
            limit_nbytes=budget if chosen.fits == "fits" else None,
        )


def _fits(report: Report, budget_nbytes: int) -> bool:
    """Return whether a program surely fits as it is, by XLA if that was asked."""
    assert report.peak is not None
    by_xla = next((c.peak_nbytes for c in report.compiled if c.peak_nbytes is not None), None)
    if by_xla is not None:
        return by_xla <= budget_nbytes
    return answer(report.peak.interval, budget_nbytes) == "fits"


def _tried(subject: Subject, batch: Batch, peak: int, budget: int) -> list[_Divided]:
    """Return the program in two (or as few as there can be) microbatches, and in as many as help.

    These are the fewest that surely fit, else the fewest with which all the rest of the gain is
    not worth saying; nothing where even the most gain too little.
    """
    counts = _counts(subject, batch)
    known: dict[int, _Divided | None] = {}

    def tried(count: int) -> _Divided | None:
        if count not in known:
            known[count] = _in_microbatches(subject, count, budget)
        return known[count]

    # With single items a function may take other shapes.
    most = next((m for count in reversed(counts[-2:]) if (m := tried(count)) is not None), None)
    if most is None or peak - most.nbytes < WORTH_SAYING * peak:
        return []
    if _mixes_items(subject, most.count):
        return []
    counts = [count for count in counts if count <= most.count]

    def is_enough(found: _Divided) -> bool:
        if most.fits == "fits":
            return found.fits == "fits"
        return found.nbytes - most.nbytes < WORTH_SAYING * peak

    enough = _first(counts, tried, is_enough) or most
    few = tried(counts[0])
    return [enough] if few is None or few is enough else [few, enough]


def _first(
    counts: Sequence[int],
    tried: Callable[[int], _Divided | None],
    is_enough: Callable[[_Divided], bool],
) -> _Divided | None:
    """Return the program in the fewest microbatches that are enough; with more, all are."""
    low, high = 0, len(counts) - 1
    while low < high:
        middle = (low + high) // 2
        found = tried(counts[middle])
        if found is not None and is_enough(found):
            high = middle
        else:
            low = middle + 1
    return tried(counts[low])


def _counts(subject: Subject, batch: Batch) -> list[int]:
    """Return the numbers of microbatches that leave each device some items, fewest first."""
    size = batch.size // _pieces(subject, batch)
    return [n for n in range(2, min(size, _MOST) + 1) if size % n == 0]


def _pieces(subject: Subject, batch: Batch) -> int:
    """Return over how many devices the batch is split."""
    call, most = subject.trace.arguments, 1
    for i in batch.leaves:
        leaf = call.leaves[i]
        sharding: Any = getattr(leaf, "sharding", None)
        split = jax_compat.split_of(sharding, len(leaf.shape))
        if split is not None and split[0]:
            most = max(most, math.prod(sharding.mesh.shape[axis] for axis in split[0]))
    return most


def _in_microbatches(subject: Subject, count: int, budget: int) -> _Divided | None:
    """Return the program in some number of microbatches; None where that cannot be traced."""
    try:
        variant = _variant(subject, count)
    except RetraceError:
        return None
    around = subject.interval(variant.peak_nbytes, variant.lowered.program)
    fits = answer(around, budget)
    return _Divided(count, variant.peak_nbytes, around, variant.kept_nbytes, fits)


def _variant(subject: Subject, count: int) -> Variant:
    """Return the program in some number of microbatches.

    Raises:
      RetraceError: it cannot be traced; with other shapes the function may raise anything.
    """
    with retracing(f"{count} microbatches"):
        return in_microbatches(subject, count).variants().variant({})


def _changed(subject: Subject, count: int) -> Changed:
    variant = _variant(subject, count)
    return Changed(variant.trace, variant.program)


def _mixes_items(subject: Subject, count: int) -> bool:
    """Return whether items of a batch are compared with each other, so that parts are another loss.

    A value of each two items has two dims of the batch: both are smaller with a microbatch.
    """
    with retracing(f"{count} microbatches"):
        parts = divided(subject, count)
    jaxprs = [each.trace.tops for each in (subject, parts)]
    pairs = [_paired(a.jaxpr, b.jaxpr) for a, b in zip(*jaxprs, strict=True)]
    return any(
        sum(n == m * count for n, m in zip(a, b, strict=True)) > 1
        for shapes in pairs
        for a, b in shapes
        if len(a) == len(b)
    )


_Shape = tuple[int, ...]


def _paired(whole: Jaxpr, part: Jaxpr) -> Iterator[tuple[_Shape, _Shape]]:
    """Yield the shapes of each value with the whole batch and with a part of it."""
    for a, b in zip(eqns_in(whole), eqns_in(part), strict=False):
        if jax_compat.primitive_name(a) != jax_compat.primitive_name(b):
            return
        yield from zip(_shapes(a), _shapes(b), strict=False)


def _shapes(eqn: Eqn) -> list[_Shape]:
    return [getattr(v.aval, "shape", ()) for v in eqn.outvars]


def _finding(
    report: Report, subject: Subject, batch: Batch, tried: Sequence[_Divided], budget: int
) -> Finding:
    assert report.peak is not None
    few, chosen = tried[0], tried[-1]
    peak, paths = report.peak.nbytes, subject.trace.arguments.paths
    names = " and ".join(dict.fromkeys(argument_name(paths[i]) for i in batch.leaves))
    rows = batch.size // chosen.count
    others = "" if few is chosen else f"; in {few.count} it is {format_bytes(few.nbytes)}"
    return Finding(
        NAME,
        f"{report.target.name} takes the batch of {batch.size} ({names}) at once:"
        f" {format_bytes(peak)}{_range(report.peak.interval)} by the estimate, of"
        f" {format_bytes(budget)}. In {chosen.count} microbatches of {rows}, their gradients added"
        f" up, the estimated peak falls to {format_bytes(chosen.nbytes)}"
        f"{_range(chosen.interval)}, {_ANSWERS[chosen.fits]}, and"
        f" {kept_change(report.totals.computed_nbytes, chosen.kept_nbytes)}, for no more"
        f" FLOPs{others}",
        NOWHERE,
        help="add up jax.value_and_grad of the microbatches in a jax.lax.scan, and update once:"
        f" `{_command(report.words, chosen.count)}` writes it, and weighs checkpoints against it",
        measured={
            "items": batch.size,
            "arguments": [paths[i] for i in batch.leaves],
            "microbatches": chosen.count,
            "fits": chosen.fits,
            "limit_nbytes": budget,
            "peak_nbytes": chosen.nbytes,
            "peak_before_nbytes": peak,
            "kept_nbytes": chosen.kept_nbytes,
            "kept_before_nbytes": report.totals.computed_nbytes,
            "tried": [
                {"microbatches": each.count, "peak_nbytes": each.nbytes, "fits": each.fits}
                for each in tried
            ],
        },
    )


def _command(words: tuple[str, ...], most: int) -> str:
    """Return what plans for up to so many microbatches, on the command line or in Python."""
    if not words:
        return f"jaxresid.plan(..., microbatches=range(1, {most + 1}))"
    return shlex.join(("jaxresid", "plan", *words, "--microbatches", f"1..{most}"))


_ANSWERS: dict[Answer, str] = {
    "fits": "which fits",
    "too close": "which is too close to tell",
    "does not fit": "which does not fit yet",
}


def _range(interval: Interval | None) -> str:
    if interval is None:
        return ""
    return f" ({format_bytes(interval.low_nbytes)} to {format_bytes(interval.high_nbytes)})"

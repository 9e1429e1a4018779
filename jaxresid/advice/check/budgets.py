"""Hold a report against what its program may take, and word what is above that."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal as OneOf

from jaxresid.base.errors import InputsError
from jaxresid.base.text.units import format_bytes
from jaxresid.linter.rules import TRACED
from jaxresid.results import (
    NOWHERE,
    Compiled,
    Computed,
    Finding,
    Held,
    Interval,
    Limits,
    LineBytes,
    Report,
    Source,
)

PEAK_RULE, KEPT_RULE = "peak-over-budget", "kept-over-budget"
# The codes of what is above a limit that was set for a program.
BUDGET_CODES = frozenset(entry.code for entry in TRACED if entry.code.startswith("JXR82"))
# As many lines are named as a reader takes in at once.
_NAMED = 3
# Of the figure; less is not worth a word.
_ARGUMENTS, _LINE = 0.1, 0.01


@dataclass(frozen=True, slots=True)
class BudgetFinding:
    """What is said of a figure that is above its limit, or may be.

    Attributes:
      finding: the finding, at the line that makes most of the figure.
      fails: whether it is above, and not only the upper end of an interval.
    """

    finding: Finding
    fails: bool


def held(report: Report, limits: Limits) -> tuple[Held, ...]:
    """Return the figures of a report that have a limit, held against it.

    XLA's peak is taken where there is one, else the estimate.

    Args:
      report: The report.
      limits: What the program may take.

    Raises:
      InputsError: The peak has a limit and is not known: on a CPU, without the compiler.
    """
    found = []
    if limits.peak_nbytes is not None:
        found.append(_held_peak(report, limits.peak_nbytes))
    if limits.kept_nbytes is not None:
        found.append(
            Held(
                "kept",
                report.totals.computed_nbytes,
                limits.kept_nbytes,
                "trace",
                lines=kept_by_line(report),
            )
        )
    return tuple(found)


def budget_findings(
    report: Report, limits: Limits, reference: str | None = None
) -> tuple[BudgetFinding, ...]:
    """Return what there is to say of a report's figures that are, or may be, above their limits.

    Args:
      report: The report.
      limits: What the program may take.
      reference: How a shell's command line names it; None for a function that none names.

    Raises:
      InputsError: As `held`.
    """
    name = reference or report.target.name
    return tuple(
        BudgetFinding(_finding(each, name, _remedy(each, report)), each.fails)
        for each in held(report, limits)
        if each.holding != "within"
    )


def sentence(held: Held, name: str, *, decides: str = "--compile") -> str:
    """Return one sentence that says by how much a figure is above its limit, or that it may be.

    Args:
      held: The figure.
      name: What the program is called.
      decides: What asks the compiler, where the estimate is too close to tell.
    """
    limit, nbytes = format_bytes(held.limit_nbytes), format_bytes(held.nbytes)
    over = format_bytes(held.nbytes - held.limit_nbytes)
    if held.figure == "kept":
        return f"the backward pass of `{name}` keeps {nbytes}, {over} over its budget of {limit}"
    if held.by == "xla":
        return f"XLA's peak of `{name}` is {nbytes}, {over} over its budget of {limit}"
    estimate = f"the estimated peak of `{name}` is {nbytes}"
    if held.is_lower_bound:
        bound = f"{estimate}, a lower bound"
        if held.fails:
            return f"{bound}, {over} over its budget of {limit}"
        return f"{bound}, so that it may be over its budget of {limit}"
    between = "" if held.interval is None else f" ({_range(held.interval)})"
    if held.holding == "may be over":
        return (
            f"{estimate}{between}, below its budget of {limit}, which the range reaches over"
            f" ({decides} decides)"
        )
    said = f"{estimate}{between}, {over} over its budget of {limit}"
    if held.holding == "estimated over":
        return f"{said}, which is inside the range ({decides} decides)"
    return said


def _range(interval: Interval) -> str:
    return f"{format_bytes(interval.low_nbytes)} to {format_bytes(interval.high_nbytes)}"


@dataclass(frozen=True, slots=True)
class KnownPeak:
    """A peak in bytes, and whether it is the estimate or XLA's."""

    nbytes: int
    by: OneOf["estimate", "xla"]


def peak_of(report: Report) -> KnownPeak | None:
    """Return XLA's peak where there is one, else the estimate; None where neither is known."""
    if (compiled := _compiled(report)) is not None:
        return KnownPeak(compiled.needed_nbytes or compiled.peak_nbytes or 0, "xla")
    return None if report.peak is None else KnownPeak(report.peak.nbytes, "estimate")


def _compiled(report: Report) -> Compiled | None:
    return next((c for c in report.compiled if c.peak_nbytes is not None), None)


def _held_peak(report: Report, limit_nbytes: int) -> Held:
    peak, compiled, estimate = peak_of(report), _compiled(report), report.peak
    if peak is None:
        errors = "; ".join(c.error for c in report.compiled if c.error is not None)
        raise InputsError(
            f"the peak of {report.target.name} on {report.place.name} is not known, so it cannot be"
            f" held against {format_bytes(limit_nbytes)}: "
            + (errors or "peaks are not estimated there; add --compile (compile=True)")
        )
    if compiled is not None:
        lines = _compiled_by_line(compiled) or live_by_line(report)
        arguments = compiled.argument_nbytes or 0
        return Held("peak", peak.nbytes, limit_nbytes, "xla", False, None, lines, arguments)
    assert estimate is not None
    return Held(
        "peak",
        peak.nbytes,
        limit_nbytes,
        "estimate",
        bool(estimate.uncounted),
        estimate.interval,
        live_by_line(report),
        estimate.arguments_nbytes,
    )


def live_by_line(report: Report) -> tuple[LineBytes, ...]:
    """Return the lines whose values are live at the estimated peak, that of the most bytes first.

    Where no peak is estimated these are the lines of what is kept.
    """
    if report.peak is None:
        return kept_by_line(report)
    return _by_line((v.source, v.nbytes, v.kind) for v in report.peak.live)


def _compiled_by_line(compiled: Compiled) -> tuple[LineBytes, ...]:
    return _by_line(
        (b.source, b.nbytes, "residual" if b.residual else b.kind)
        for b in compiled.buffers
        if b.memory == "device" and b.kind != "argument"
    )


def kept_by_line(report: Report) -> tuple[LineBytes, ...]:
    """Return the lines whose values are kept in device memory, that of the most bytes first."""
    return _by_line(
        (r.origin.source, r.nbytes, "residual")
        for r in report.residuals
        if isinstance(r.origin, Computed) and r.aval.memory == "device"
    )


def _by_line(values: Iterable[tuple[Source, int, str]]) -> tuple[LineBytes, ...]:
    """Return the bytes of values by the lines that make them, largest first.

    A value whose line is not known has none to be counted at.
    """
    groups: dict[tuple[str, int], list[tuple[Source, int, str]]] = {}
    for source, nbytes, kind in values:
        where = source.location or source.library
        if where is not None and nbytes:
            groups.setdefault((where.file, where.line), []).append((source, nbytes, kind))
    lines = (
        LineBytes(
            max(group, key=lambda each: each[1])[0],
            sum(nbytes for _, nbytes, _ in group),
            _kinds(group),
        )
        for group in groups.values()
    )
    return tuple(sorted(lines, key=lambda line: -line.nbytes))


def _kinds(group: Iterable[tuple[Source, int, str]]) -> tuple[str, ...]:
    totals: dict[str, int] = {}
    for _, nbytes, kind in group:
        totals[kind] = totals.get(kind, 0) + nbytes
    return tuple(sorted(totals, key=lambda kind: -totals[kind]))


def _finding(held: Held, name: str, remedy: str) -> Finding:
    source = held.lines[0].source if held.lines else NOWHERE
    if source.location is not None:  # a line is of several modules, and of calls into libraries
        source = Source(source.location)
    message = ". ".join([sentence(held, name), *_shares(held)])
    rule = PEAK_RULE if held.figure == "peak" else KEPT_RULE
    return Finding(rule, message, source, remedy, _measured(held))


def _shares(held: Held) -> Iterator[str]:
    """Yield a sentence on the lines that make most of a figure, and one on arguments."""
    if held.lines:
        first, *others = held.lines[:_NAMED]
        verb = "takes" if held.figure == "peak" else "keeps"
        worth = [line for line in others if line.nbytes >= _LINE * held.nbytes]
        named = [f"{format_bytes(line.nbytes)} at {_place(line.source)}" for line in worth]
        also = f", and {' and '.join(named)}" if named else ""
        yield f"This line {verb} {format_bytes(first.nbytes)} of it{also}"
    if held.figure == "peak" and held.arguments_nbytes >= _ARGUMENTS * held.nbytes:
        yield f"Arguments are {format_bytes(held.arguments_nbytes)} of it"


def _place(source: Source) -> str:
    where = source.location or source.library
    return "" if where is None else f"{where.file}:{where.line}"


def _remedy(held: Held, report: Report) -> str:
    words = report.words
    if not report.target.has_gradient:
        return "make what the line computes smaller, or raise the budget"
    if held.figure == "kept" or not words:
        return "checkpoint the function that the line is in, or raise the budget"
    budget = format_bytes(held.limit_nbytes).replace(".00 ", "").replace(" ", "")
    command = shlex.join(("jaxresid", "plan", *words, "--budget", budget))
    return f"`{command}` looks for checkpoints that fit"


def _measured(held: Held) -> dict[str, object]:
    interval = held.interval
    return {
        "figure": held.figure,
        "holding": held.holding,
        "by": held.by,
        f"{held.figure}_nbytes": held.nbytes,
        "limit_nbytes": held.limit_nbytes,
        **(
            {}
            if interval is None
            else {"low_nbytes": interval.low_nbytes, "high_nbytes": interval.high_nbytes}
        ),
        **({"line_nbytes": held.lines[0].nbytes} if held.lines else {}),
    }

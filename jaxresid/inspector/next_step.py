"""Choose the one thing to do next: fit the program, check a checkpoint, or gain room."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Literal

from jaxresid.base.text.units import format_bytes
from jaxresid.inspector.findings.donation import MISSING
from jaxresid.inspector.findings.proposals import ChangeEffect, Proposal
from jaxresid.results import (
    Answer,
    Checkpoint,
    Compiled,
    Computed,
    NextStep,
    Report,
    Residual,
    Verdict,
    answer,
    live_lines,
)

_GOOD = (Verdict.EARNS, Verdict.NOT_JUDGED)
_SAYS = {
    Verdict.SAVES_NOTHING: "saves nothing",
    Verdict.COSTS_MEMORY: "costs memory",
    Verdict.UNDONE: "is undone by XLA",
    Verdict.OVERRIDDEN: "has a policy without effect",
    Verdict.MATCHED_NOTHING: "has a policy that matches nothing",
}
_PLURALS = {
    "argument": "arguments",
    "constant": "constants",
    "gradient": "gradients",
    "output": "outputs",
    "residual": "residuals",
    "temporary": "temporaries",
}
# Less of the peak, and no checkpoint changes much.
_LITTLE = 0.05
# Of the FLOPs; less is not worth changing a program that fits.
_WORTH_SAVING = 0.02
_LOWER_BOUND = "the estimate is a lower bound; XLA can tell"
# Less would be shown as nothing.
_SHOWN = 0.001


def next_step(
    report: Report,
    words: tuple[str, ...],
    *,
    proposals: Sequence[Proposal] = (),
    is_dead: bool,
    why_uncompiled: Callable[[], str | None],
) -> NextStep:
    """Return the one thing to do next.

    Args:
      report: the report, apart from this.
      words: the words of the command line that ask about the same function, as `NextStep` has them.
      proposals: its findings whose worth is that of a rewrite.
      is_dead: whether it is a training step that does nothing with its gradients.
      why_uncompiled: returns why the compiler of the place is not here; None if it is.
    """
    found = _chosen(report, proposals, is_dead, why_uncompiled)
    return dataclasses.replace(found, words=words)


def ask_compiler(
    action: Literal["plan", "compare", "compile"],
    why_not: str | None,
    reason: str = "the estimate is too close to tell; XLA can",
) -> NextStep:
    """Return the step where an estimate is too close to tell.

    Args:
      action: the command that asks the compiler.
      why_not: why the compiler of the place is not here; None if it is.
      reason: why the estimate does not tell, and that XLA can.
    """
    if why_not is None:
        return NextStep(action, reason, compiles=action != "compile")
    return NextStep("install", f"{reason}: {why_not}")


def _chosen(
    report: Report,
    proposals: Sequence[Proposal],
    is_dead: bool,
    why_uncompiled: Callable[[], str | None],
) -> NextStep:
    if is_dead:
        return NextStep("return", "return what depends on the gradients; see the warning below")
    # What XLA has said the next figures are not to contradict by an estimate.
    fits, by_xla = _fits(report), _is_compiled_too(report)
    if fits == "too close" and not report.compiled:
        return ask_compiler("compile", why_uncompiled())
    if not report.target.has_gradient:
        if fits is None and report.peak is not None and report.peak.uncounted:
            return ask_compiler("compile", why_uncompiled(), _LOWER_BOUND)
        return _without_gradient(report, proposals, fits)
    if fits == "does not fit":
        message = f"make it fit; {_best_change(report, proposals) or _culprit(report)}"
        return NextStep("plan", message, _kept(report), compiles=by_xla)
    if fits == "too close":
        message = f"make sure that it fits; {_best_change(report, proposals) or _culprit(report)}"
        return NextStep("plan", message, _kept(report), compiles=True)
    bad = [c for c in report.checkpoints if c.verdict not in _GOOD]
    if bad:
        worst = max(bad, key=lambda c: c.recompute_flops or 0)
        return dataclasses.replace(_check(worst, len(bad)), compiles=by_xla)
    if fits == "fits" and (spare := _dispensable(report)) is not None:
        return spare
    if not _kept(report):
        return NextStep("none", "nothing: no residual is kept, so no checkpoint lowers the peak")
    if (most := _instead_of_residuals(report)) is not None:
        return NextStep("none", f"nothing: no checkpoint lowers the peak much, as {most}")
    return NextStep("compare", _culprit(report), _kept(report), compiles=by_xla)


def _without_gradient(
    report: Report, proposals: Sequence[Proposal], fits: Answer | None
) -> NextStep:
    """Return the step for a program that takes no gradient, which no checkpoint changes."""
    change, saved = _best_change(report, proposals, others=""), None
    most, capacity = _most_at_peak(report), _capacity(report)
    if change is None and (donation := _donation(report)) is not None:
        saved, after = donation.saved_nbytes, donation.after_nbytes
        change = f"{donation.text}: {format_bytes(saved)} less, {format_bytes(after)}"
        if fits == "does not fit" and capacity is not None and after > capacity:
            change = f"{change}, and make smaller what is left; {most}"
    if fits in ("does not fit", "too close"):
        aim = "make it fit" if fits == "does not fit" else "make sure that it fits"
        how = change or f"make smaller what it holds; {most}"
        return NextStep("change", f"{aim}: {how}", saved)
    if change is not None:
        return NextStep("change", f"{change}{'; it fits as it is' * (fits == 'fits')}", saved)
    return NextStep("none", "; ".join(filter(None, ("nothing: it fits" * bool(fits), most))))


@dataclasses.dataclass(frozen=True, slots=True)
class _Donation:
    """What a finding says of donating: in words, the bytes off the peak and those that are left."""

    text: str
    saved_nbytes: int
    after_nbytes: int


def _donation(report: Report) -> _Donation | None:
    """Return what donating does to the peak; None where no finding says so."""
    for finding in report.findings:
        if finding.name == MISSING:
            figures = finding.measured
            names, saved, after = (
                figures[name] for name in ("arguments", "saved_nbytes", "peak_nbytes")
            )
            assert isinstance(names, list)
            assert isinstance(saved, int)
            assert isinstance(after, int)
            return _Donation(f"donate {' and '.join(names)}", saved, after)
    return None


def _most_at_peak(report: Report) -> str:
    """Return which line or argument is most of the peak: `8.00 GiB of 17.06 GiB are at x.py:3`."""
    peak = report.peak
    lines = () if peak is None else live_lines(peak)
    if peak is None or not lines:
        return ""
    most = lines[0]
    share = f"{format_bytes(most.nbytes)} of {format_bytes(peak.nbytes)} at the peak"
    if most.argument is not None:
        kind = most.values[0].kind
        return f"{share} are {most.argument or _PLURALS.get(kind, kind)}"
    where = most.location
    if where is None:
        return f"{share} are temporaries"
    place = where.place.rpartition("site-packages/")[2]
    return f"{share} are made at {place} {where.function}".rstrip()


def _dispensable(report: Report) -> NextStep | None:
    """Return a step about the most expensive checkpoint without which it fits as well, if any."""
    capacity, wider = _capacity(report), 1.0
    if capacity is None:
        return None
    if _compiled(report) is None and report.peak is not None and report.peak.interval is not None:
        wider = report.peak.interval.high_nbytes / report.peak.nbytes
    found = [
        (c.recompute_fraction, c.peak_without_nbytes, c)
        for c in report.checkpoints
        if c.recompute_fraction is not None
        and c.recompute_fraction >= _WORTH_SAVING
        and c.peak_without_nbytes is not None
        and c.peak_without_nbytes * wider <= capacity
    ]
    if not found:
        return None
    share, nbytes, c = max(found, key=lambda each: each[0])
    message = (
        f"the checkpoint of {c.function} adds {share:.1%} FLOPs; without it the peak of"
        f" {format_bytes(nbytes)} fits as well"
    )
    return NextStep("compare", message, nbytes, compiles=_is_compiled_too(report))


def _is_compiled_too(report: Report) -> bool:
    """Return whether XLA was asked beside an estimate; on a CPU there is none."""
    return report.peak is not None and _compiled(report) is not None


def _capacity(report: Report) -> int | None:
    compiled = _compiled(report)
    return report.place.memory_nbytes if compiled is None else compiled.capacity_nbytes


def _fits(report: Report) -> Answer | None:
    """Return whether it fits; None where the memory is not known, or nothing says what it takes."""
    compiled = _compiled(report)
    if compiled is not None:
        if compiled.may_fit or compiled.fits is None:
            return "too close" if compiled.may_fit else None
        return "fits" if compiled.fits else "does not fit"
    capacity = report.place.memory_nbytes
    if report.peak is None or not capacity:
        return None
    if report.peak.interval is None:
        return "does not fit" if report.peak.uncounted and report.peak.nbytes > capacity else None
    return answer(report.peak.interval, capacity)


def _compiled(report: Report) -> Compiled | None:
    return next((c for c in report.compiled if c.error is None), None)


def _check(checkpoint: Checkpoint, count: int) -> NextStep:
    where = checkpoint.location
    place = f" at {where.file}:{where.line}" if where else ""
    costs = ""
    if checkpoint.recompute_fraction is not None and checkpoint.recompute_fraction >= _SHOWN:
        costs = f" for {checkpoint.recompute_fraction:.1%} more FLOPs"
    others = f", as {count - 1} more" if count > 1 else ""
    message = (
        f"the checkpoint of {checkpoint.function}{place} {_SAYS[checkpoint.verdict]}{costs}{others}"
    )
    saved = checkpoint.saved_nbytes
    return NextStep("check", message, saved)


def _kept(report: Report) -> int:
    totals = report.totals
    return totals.computed_nbytes + totals.host_nbytes


def _best_change(
    report: Report, proposals: Sequence[Proposal], others: str = "; weigh checkpoints against it"
) -> str | None:
    """Return the change of a finding that makes it fit, and that plans are to be weighed against.

    Of several it is the one of fewest FLOPs. Where none does, it is that which takes most off the
    peak, if that is at least half of what is too much; else None. It is followed by `others`.
    """
    capacity = _capacity(report)
    effects = [each for each in map(ChangeEffect.of, proposals) if each is not None]
    if not effects or capacity is None:
        return None
    best = min(effects, key=lambda e: (max(e.after_nbytes - capacity, 0), e.flops_fraction))
    if 2 * best.saved_nbytes < best.before_nbytes - capacity:
        return None
    return f"{best.text}{others}"


def _culprit(report: Report) -> str:
    """Return what keeps most: `attention keeps 7.15 GiB of the 13.13 GiB kept`.

    Where residuals are little of the peak it says what is most of it instead.
    """
    if (most := _instead_of_residuals(report)) is not None:
        return most
    kept = report.totals.computed_nbytes
    by_function: dict[str, int] = {}
    for residual in report.residuals:
        if residual.origin.kind == "computed" and residual.aval.memory == "device":
            name = _function(residual)
            by_function[name] = by_function.get(name, 0) + residual.nbytes
    name = max(by_function, key=by_function.__getitem__, default="")
    if not name:
        return f"{format_bytes(kept)} are kept"
    return f"{name} keeps {format_bytes(by_function[name])} of {format_bytes(kept)}"


def _instead_of_residuals(report: Report) -> str | None:
    """Return what is most of the peak, where residuals are little of it: `... are arguments`."""
    peak = report.peak
    if peak is None or not peak.breakdown or _kept(report) >= _LITTLE * peak.nbytes:
        return None
    kind, nbytes = peak.breakdown[0]
    what = _PLURALS.get(kind, kind.replace("-", " "))
    return f"{format_bytes(nbytes)} of {format_bytes(peak.nbytes)} are {what}"


def _function(residual: Residual) -> str:
    origin = residual.origin
    assert isinstance(origin, Computed)
    where = origin.location
    if where is None:
        return ""
    return where.place if where.is_of_loss or "<" in where.function else where.function

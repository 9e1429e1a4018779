"""The estimate of the peak in words: how much, where, and what is live there."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace

from rich.console import Group, RenderableType
from rich.text import Text

from jaxresid.base.text.layer_paths import folded, pattern
from jaxresid.base.text.units import format_bytes
from jaxresid.render.report.cost import at_least
from jaxresid.render.report.estimates import STYLES, about_text, answer_text, interval_remarks
from jaxresid.render.style.grids import shares_grid, smaller_text, times_text
from jaxresid.render.style.words import PHASES, aval_text, kind_text, kinds_text, percent
from jaxresid.render.style.wrapping import SourceLines
from jaxresid.results import LiveValue, Peak, PlaceInfo, Report, answer

_TOP = 5


def peak_text(peak: Peak) -> str:
    """Return the estimated peak as text: `peak about 13.8 GiB (12.4 to 15.6)`."""
    bound = at_least(peak.uncounted)
    if bound:
        return f"peak {bound}{format_bytes(peak.nbytes)} (estimate)"
    return f"peak {about_text(peak.nbytes, peak.interval)}"


def room_text(report: Report) -> Text:
    """Return whether the estimated peak fits; empty without an interval, or if XLA was asked."""
    capacity = report.place.memory_nbytes
    if report.peak is None or report.peak.interval is None or not capacity or report.compiled:
        return Text()
    around = report.peak.interval
    return Text(answer_text(around, capacity), STYLES[answer(around, capacity)])


def op_text(peak: Peak) -> str:
    """Return where the peak is: `at dot_general in the backward pass`."""
    at = f"at {peak.primitive}" if peak.primitive else ""
    where = "" if peak.phase == "program" and at else f"in {PHASES[peak.phase]}"
    return f"{at} {where}".strip()


def breakdown_parts(peak: Peak) -> tuple[str, ...]:
    """Return the bytes of each kind at the peak: `residuals 704.00 MiB (12.0%)`."""
    return tuple(
        f"{kinds_text(kind)} {format_bytes(nbytes)} ({percent(nbytes, peak.nbytes)})"
        for kind, nbytes in peak.breakdown
        if nbytes
    )


@dataclass(frozen=True, slots=True)
class LargestValues:
    """The biggest of the values live at the peak, and the bytes of each of the others."""

    shown: tuple[LiveValue, ...]
    hidden_nbytes: tuple[int, ...]


def top_live(peak: Peak, most: int | None = _TOP) -> LargestValues:
    """Return the `most` biggest values live at the peak; arguments of repeated layers are one."""
    groups: dict[Hashable, list[LiveValue]] = {}
    for i, live in enumerate(peak.live):
        key: Hashable = i
        if live.primitive is None and live.path is not None:
            key = (live.kind, live.aval, pattern(live.path))
        groups.setdefault(key, []).append(live)
    rows = [_folded(group) for group in groups.values()]
    rows.sort(key=lambda live: -live.nbytes)  # stable: equal ones stay in the order given
    shown = rows[:most]
    hidden_nbytes = tuple(live.nbytes for live in rows[len(shown) :])
    return LargestValues(tuple(shown), hidden_nbytes)


def live_text(live: LiveValue) -> str:
    """Return a live value as text, without the count: `bf16[8,1024]  residual, exp, forward`."""
    if live.aval is None and live.primitive is not None:
        return f"scratch memory of {live.primitive}"
    shape = f"{aval_text(live.aval)}  " if live.aval else ""
    kind = kind_text(live.kind)
    if live.primitive is None:
        return f"{shape}{kind}{f' {live.path}' if live.path else ''}"
    phase = f", {live.phase}" if live.phase not in (None, "program") else ""
    return f"{shape}{kind}, {live.primitive}{phase}"


def peak_remarks(peak: Peak, place: PlaceInfo) -> tuple[str, ...]:
    """Return remarks on what the figure leaves out, and on its interval."""
    return (*left_out(peak), *(() if peak.uncounted else interval_remarks([place])))


def left_out(peak: Peak) -> tuple[str, ...]:
    """Return remarks on what the figure of a peak leaves out."""
    remarks = []
    if peak.aliased_nbytes:
        nbytes = format_bytes(peak.aliased_nbytes)
        remarks.append(f"{nbytes} of outputs reuse donated arguments and are counted once.")
    if peak.host_nbytes:
        remarks.append(f"{format_bytes(peak.host_nbytes)} of host memory in addition.")
    if peak.uncounted:
        remarks.append(f"not counted: scratch memory of {', '.join(peak.uncounted)}")
    return tuple(remarks)


def render_live(report: Report, most: int | None = _TOP) -> Iterator[RenderableType]:
    """Yield where the estimated peak is and what is live there; nothing without an estimate."""
    peak = report.peak
    if peak is None:
        return
    yield Text.assemble(("live at the peak", "bold"), f", {op_text(peak)}")
    yield SourceLines(peak.source)
    top = top_live(peak, most)
    if top.shown:
        yield shares_grid(
            (
                live.nbytes,
                percent(live.nbytes, peak.nbytes),
                Group(times_text(live.count).append(live_text(live)), SourceLines(live.source)),
            )
            for live in top.shown
        )
    if top.hidden_nbytes:
        yield Text(smaller_text(top.hidden_nbytes, "value"), style="dim")
    yield from (Text(remark, style="dim") for remark in left_out(peak))


def _folded(group: list[LiveValue]) -> LiveValue:
    first = group[0]
    if len(group) == 1:
        return first
    return replace(
        first,
        nbytes=sum(live.nbytes for live in group),
        count=sum(live.count for live in group),
        path=folded(live.path or "" for live in group),
    )

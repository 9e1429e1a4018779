"""The estimate of the peak in words: how much, where, and what is live there."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from jaxresid.base.text.layer_paths import folded, pattern
from jaxresid.base.text.units import format_bytes
from jaxresid.render.report.cost import at_least
from jaxresid.render.report.estimates import STYLES, about_text, answer_text, interval_remarks
from jaxresid.render.report.sparkline import column, sparkline
from jaxresid.render.style.words import aval_text, kind_text, kinds_text, percent, phase_text
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
    """Return whether the estimated peak fits the place, as far as the estimate can tell.

    It is empty where the memory is not known, where there is no interval, and where XLA was asked.
    """
    capacity = report.place.memory_nbytes
    if report.peak is None or report.peak.interval is None or not capacity or report.compiled:
        return Text()
    around = report.peak.interval
    return Text(answer_text(around, capacity), STYLES[answer(around, capacity)])


def op_text(peak: Peak) -> str:
    """Return where the peak is: `at dot_general in the backward pass`."""
    at = f"at {peak.primitive}" if peak.primitive else ""
    where = "" if peak.phase == "program" and at else f"in {phase_text(peak.phase)}"
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
    """The biggest of the values live at the peak, and how many are not among them.

    Attributes:
      shown: the biggest values, the biggest first.
      hidden: how many others there are.
      hidden_nbytes: the bytes of the others.
    """

    shown: tuple[LiveValue, ...]
    hidden: int
    hidden_nbytes: int


def top_live(peak: Peak, most: int | None = _TOP) -> LargestValues:
    """Return the biggest of the values live at the peak, `most` of them; all where that is None.

    Arguments that differ only in an index, as those of repeated layers do, are one row.
    """
    groups: dict[Hashable, list[LiveValue]] = {}
    for i, live in enumerate(peak.live):
        key: Hashable = i
        if live.primitive is None and live.path is not None:
            key = (live.kind, live.aval, pattern(live.path))
        groups.setdefault(key, []).append(live)
    rows = [_folded(group) for group in groups.values()]
    rows.sort(key=lambda live: -live.nbytes)  # stable: equal ones stay in the order given
    shown = rows[:most]
    hidden = rows[len(shown) :]
    return LargestValues(tuple(shown), len(hidden), sum(live.nbytes for live in hidden))


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


def hidden_text(top: LargestValues) -> str:
    """Return what is not shown: `12 smaller values, 1.25 GiB`; an empty text where all are."""
    plural = "value" if top.hidden == 1 else "values"
    return f"{top.hidden} smaller {plural}, {format_bytes(top.hidden_nbytes)}" * bool(top.hidden)


def curve_lines(peak: Peak, width: int, encoding: str = "utf-8") -> tuple[str, str]:
    """Return the live bytes over the program as a sparkline, and the line of marks under it.

    The marks are one at the peak, and the lowest level of the curve in bytes. The sparkline starts
    at that level and not at zero, since what stays put, such as the arguments, would flatten it.
    """
    at = column(peak.curve_at, len(peak.curve), width)
    right, left = "^ peak", "peak ^"
    fits = at + len(right) <= width
    start = at if fits else at + 1 - len(left)
    mark = " " * start + (right if fits else left)
    lowest = f"lowest {format_bytes(min(peak.curve))}"
    if len(lowest) + 2 <= start:
        mark = lowest + mark[len(lowest) :]
    elif len(mark) + 2 + len(lowest) <= width:
        mark += lowest.rjust(width - len(mark))
    return sparkline(peak.curve, width, encoding), mark


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
    """Yield where the estimated peak is and what is live there; nothing without an estimate.

    Args:
      report: the report.
      most: show at most so many of the values; None: all.
    """
    peak = report.peak
    if peak is None:
        return
    yield Text.assemble(("live at the peak", "bold"), f", {op_text(peak)}")
    yield SourceLines(peak.source)
    top = top_live(peak, most)
    if top.shown:
        yield _table(peak, top)
    if top.hidden:
        yield Text(hidden_text(top), style="dim")
    yield from (Text(remark, style="dim") for remark in left_out(peak))


def _table(peak: Peak, top: LargestValues) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    for live in top.shown:
        line = Text()
        if live.count > 1:
            line.append(f"×{live.count} ", style="bold magenta")
        line.append(live_text(live))
        table.add_row(
            Text(format_bytes(live.nbytes), style="cyan"),
            Text(percent(live.nbytes, peak.nbytes), style="dim"),
            Group(line, SourceLines(live.source)),
        )
    return table


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

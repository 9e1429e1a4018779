"""The first three lines: what is reported on, the peak and whether it fits, what to do next."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from jaxresid.render.report.compiled import verdict_text
from jaxresid.render.report.estimates import about_text
from jaxresid.render.report.heading import target_line
from jaxresid.render.report.next_step import next_step_lines
from jaxresid.render.report.peak import peak_text, room_text
from jaxresid.render.style.wrapping import FlowingParts
from jaxresid.results import Report


def lead(report: Report) -> Iterator[RenderableType]:
    """Yield the target with its place, the peak with the answer, and the next step."""
    yield target_line(report.target, [report.place], report.mesh)
    yield FlowingParts(list(_peak(report)), indent=2)
    yield from next_step_lines(report.next_step)


def _peak(report: Report) -> Iterator[Text]:
    for compiled in report.compiled:
        style = {True: "bold green", False: "bold red", None: "bold yellow"}[compiled.fits]
        yield Text(verdict_text(compiled), style=style)
        if compiled.peak_nbytes is not None:
            yield Text("by XLA")
        if report.peak is not None:
            yield Text(f"estimate {about_text(report.peak.nbytes, report.peak.interval)}")
    if report.compiled:
        return
    if report.peak is None:
        yield Text(f"peak not known, as {report.place.name}'s compiler was not asked")
        return
    yield Text(peak_text(report.peak), style="bold")
    if room := room_text(report):
        yield room

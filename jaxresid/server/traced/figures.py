"""The figures of a report by the lines of a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jaxresid.render.in_editor import LineFigures
from jaxresid.results import Checkpoint, Computed, LiveValue, Location, Report, Residual
from jaxresid.serialization.latest import Kept

# So much of what is kept is live at the peak that all of it is said to be.
_ALL = 0.9


@dataclass(frozen=True, slots=True)
class FileFigures:
    """What a report says of a file, by rows of the file as it was.

    Attributes:
      lines: the figures of lines.
      functions: the rows of `lines` by the name of the function that they are in.
      checkpoints: the checkpoints, with the rows that call them.
    """

    lines: Mapping[int, LineFigures]
    functions: Mapping[str, tuple[int, ...]]
    checkpoints: tuple[tuple[int, Checkpoint], ...]


def file_figures(kept: Kept, report: Report, path: str) -> FileFigures:
    """Return what a kept report says of one of its sources.

    Args:
      kept: the kept result.
      report: its report.
      path: the absolute path of the source.
    """

    def is_here(location: Location | None) -> bool:
        return location is not None and kept.absolute(location.file) == path

    residuals: dict[int, list[Residual]] = {}
    live: dict[int, list[LiveValue]] = {}
    functions: dict[str, dict[int, None]] = {}
    total = 0
    for residual in report.residuals:
        if isinstance(residual.origin, Computed):
            total += residual.nbytes
            at = residual.origin.location
            if at is not None and is_here(at):
                residuals.setdefault(at.line, []).append(residual)
                functions.setdefault(at.function, {})[at.line] = None
    peak = report.peak
    live_residuals = 0
    for value in peak.live if peak is not None else ():
        if value.kind == "residual":  # at the line that keeps it, which may be another one
            live_residuals += value.nbytes
            continue
        at = value.location
        if at is not None and is_here(at):
            live.setdefault(at.line, []).append(value)
            functions.setdefault(at.function, {})[at.line] = None
    is_at_peak = live_residuals >= _ALL * report.totals.computed_nbytes
    lines = {
        row: LineFigures(
            tuple(residuals.get(row, ())),
            tuple(live.get(row, ())),
            total,
            None if peak is None else peak.nbytes,
            is_at_peak,
        )
        for row in sorted({*residuals, *live})
    }
    checkpoints = tuple(
        (c.location.line, c)
        for c in report.checkpoints
        if c.location is not None and is_here(c.location)
    )
    rows = {name: tuple(sorted(found)) for name, found in functions.items()}
    return FileFigures(lines, rows, checkpoints)

"""The report on a program that ran out of memory, for a terminal: the verdict first."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from jaxresid.base.text.safe_text import safe_value
from jaxresid.base.text.units import format_bytes
from jaxresid.render.oom.words import (
    buffer_text,
    facts,
    part_texts,
    trace_texts,
    verdict_text,
    way_text,
)
from jaxresid.render.style.shell import ShellCommand
from jaxresid.render.style.words import percent, place_text
from jaxresid.render.style.wrapping import FlowingParts, SourceLines
from jaxresid.results import OomReport, OomTrace, Source, WayOut

_TOP = 4
_STYLES = {"held": "bold yellow", "unknown": "bold yellow"}
_PATH_PARTS = 3
_NAMES = (
    (
        "TARGET",
        "the function or training step that ran out of memory, module:function, with its inputs"
        " (`batch` in a SPEC is the batch size, and @data behind it splits it)",
    ),
    ("PLACE", "where it ran (jaxresid compile --list-places)"),
)


def render_oom(report: OomReport, *, verbose: bool = False) -> RenderableType:
    """Return the whole text of `jaxresid oom`.

    Args:
      report: what to show.
      verbose: whether to show every buffer and line whole, and what the log says.
    """
    report = safe_value(report)
    parts: list[RenderableType] = [
        Text(verdict_text(report), style=_STYLES.get(report.cause, "bold red"))
    ]
    lines: list[RenderableType] = []
    if known := facts(report):
        lines.append(FlowingParts(known))
    if made_of := part_texts(report):
        lines.append(FlowingParts(made_of, style="cyan"))
    parts.append(Padding(Group(*lines), (0, 0, 0, 2)))
    if report.buffers:
        parts += _buffers(report, verbose)
    if report.trace is not None:
        parts += _trace(report, report.trace, verbose)
    if report.hints:
        parts += [Text("lines that speak of memory")]
        parts += [Padding(Text(hint, style="dim"), (0, 0, 0, 2)) for hint in report.hints]
    if report.ways:
        parts += [Text("what to try, in this order")]
        parts += [_way(n, way) for n, way in enumerate(report.ways, start=1)]
    parts += _remarks(report, verbose)
    return Group(*parts)


def print_oom(report: OomReport, *, verbose: bool = False) -> None:
    """Print the text of `jaxresid oom` to stdout, or into the notebook's cell."""
    Console(highlight=False).print(render_oom(report, verbose=verbose), crop=False)


def _buffers(report: OomReport, verbose: bool) -> Iterator[RenderableType]:
    shown = report.buffers if verbose else report.buffers[:_TOP]
    yield Text(_title(report))
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    for buffer in shown:
        line = Text()
        if buffer.count > 1:
            line.append(f"×{buffer.count} ", style="bold magenta")
        line.append(buffer_text(buffer))
        where = _where(buffer.source, verbose)
        table.add_row(
            Text(format_bytes(buffer.nbytes), style="cyan"),
            Text(percent(buffer.nbytes, report.required_nbytes or 0), style="dim"),
            line if where is None else Group(line, where),
        )
    yield Padding(table, (0, 0, 0, 2))
    left = report.buffers[len(shown) :]
    if left:
        rows = "row" if len(left) == 1 else "rows"
        nbytes = format_bytes(sum(buffer.nbytes for buffer in left))
        yield Text(f"  {len(left)} smaller {rows}, {nbytes} (-v lists them)", style="dim")


def _trace(report: OomReport, trace: OomTrace, verbose: bool) -> Iterator[RenderableType]:
    """Yield what the trace of the target says, beside the log, and its lines."""
    assert report.target is not None
    yield Text(f"by the trace of {report.target.name}, for {trace.place}: {trace.origin}")
    yield Padding(FlowingParts(tuple(trace_texts(report, trace))), (0, 0, 0, 2))
    whole = trace.kept_nbytes if trace.peak_nbytes is None else trace.peak_nbytes
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    for line in trace.lines if verbose else trace.lines[:_TOP]:
        where = _where(line.source, verbose) or Text("in a library")
        share = percent(line.nbytes, whole)
        table.add_row(
            Text(format_bytes(line.nbytes), style="cyan"), Text(share, style="dim"), where
        )
    if trace.lines:
        yield Padding(table, (0, 0, 0, 2))


def _title(report: OomReport) -> str:
    whose = "the log" if report.source == "log" else "the dump"
    title = f"largest buffers by {whose}"
    if report.matched_nbytes is not None and report.target is not None:
        whole = sum(buffer.nbytes for buffer in report.buffers)
        share = percent(report.matched_nbytes, whole)
        what = "residuals, " * report.target.has_gradient + "arguments or outputs"
        title += f"; {share or '0 %'} of them {what} of"
        title += f" {report.target.name}"
    return title


def _where(source: Source, verbose: bool) -> RenderableType | None:
    """Return the line and the module of a buffer, in one line unless it is to be verbose."""
    if verbose:
        return SourceLines(source) if source.location or source.scope else None
    text = Text(no_wrap=True, overflow="ellipsis")
    if source.location is not None:
        place = place_text(source.location)
        parts = place.split(os.sep)
        if len(parts) > _PATH_PARTS and not source.location.code:
            place = os.sep.join(("…", *parts[-_PATH_PARTS:]))
        text.append(place)
        if source.location.code:
            text.append(f"  {source.location.code}", style="green")
    if source.scope:
        text.append((" · " if text.plain else "") + source.scope, style="dim")
    return text if text.plain else None


def _way(number: int, way: WayOut) -> RenderableType:
    nbytes = "" if not way.nbytes else f" ({format_bytes(way.nbytes)})"
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(Text(f"  {number}."), Text(f"{way_text(way)}{nbytes}"))
    return Group(table, *map(_command, way.command.split("; ")))


def _command(command: str) -> RenderableType:
    """Return a command: ours broken where it is too wide, another as it is."""
    if command.startswith("jaxresid "):
        return ShellCommand(shlex.split(command), indent=5)
    return Text(f"     {command}", style="bold", no_wrap=True, overflow="ignore")


def _remarks(report: OomReport, verbose: bool) -> Iterator[Text]:
    used = [
        f"{name} is {meaning}"
        for name, meaning in _NAMES
        if any(name in way.command.split() for way in report.ways)
    ]
    if used:
        yield Text(f"{'; '.join(used)}.", style="dim")
    shown: Sequence[str] = [
        f"also: {other.said}" + f" ({other.processes} processes)" * (other.processes > 1)
        for other in report.others
    ]
    for line in shown if verbose else ():
        yield Text(line, style="dim")
    if shown and not verbose:
        plural = "" if len(shown) == 1 else "s"
        yield Text(f"{len(shown)} other lack{plural} of memory in the log (-v)", style="dim")
    if verbose and report.said:
        yield Text(f"the log says: {report.said}", style="dim")
    if report.function and report.target is None:
        told = f"{report.function} is what the traceback ends in; its inputs, where no"
        yield Text(
            f"{told} {report.function.rpartition(':')[2]}_inputs() beside it returns them, are"
            " yours to add: --arg SPEC.",
            style="dim",
        )
    for note in report.notes:
        yield Text(f"note: {note}", style="dim")

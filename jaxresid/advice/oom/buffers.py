"""Put the buffers that a log lists in a user's terms."""

from __future__ import annotations

import linecache
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from jaxresid.inspector.residuals.matching import fold, is_accounted_for, rows_of
from jaxresid.results import CompiledBuffer, Computed, OomBuffer, Report, Residual, Source
from jaxresid.results.out_of_memory import OomRole
from jaxresid.xla.hlo.module import shape_of
from jaxresid.xla.job import PeakBuffer

_BACKWARD = re.compile(r"\btranspose\(")
_RECOMPUTE = re.compile(r"rematted_computation|\bremat\b")
_CHECKPOINT = re.compile(r"\bcheckpoint\b")
_FORWARD = re.compile(r"\bjvp\(")
_LOOP = re.compile(r"\bwhile/body\b")
_UPDATE = re.compile(r"/dynamic_update_(?:index_in_dim|slice)\b")
# Sizes in logs have three digits; what is less than this share of one is rounding.
_ROUNDING = 0.02
_LONGEST_SOURCE = 10_000_000


def oom_buffers(
    buffers: Sequence[PeakBuffer], report: Report | None
) -> tuple[tuple[OomBuffer, ...], int | None]:
    """Return the buffers in a user's terms, equal ones as one, and how many bytes were matched.

    Args:
      buffers: the buffers that a log lists.
      report: the report of the function that ran out of memory; None where it is not known, and
        nothing is matched.
    """
    residuals = report.residuals if report is not None else ()
    here = [as_here(buffer, _files(residuals)) for buffer in buffers]
    rows = rows_of(here, residuals)
    groups: dict[tuple[OomRole, bool], list[CompiledBuffer]] = defaultdict(list)
    for buffer, row in zip(here, rows, strict=True):
        role = _role(buffer.op_name) if row.kind != "argument" else ""
        stacked = role == "forward" and _has_after(_LOOP, _UPDATE, buffer.op_name)
        groups[role, stacked].append(row)
    found = [
        _buffer(row, role, stacked)
        for (role, stacked), group in groups.items()
        for row in fold(group)
    ]
    nbytes = None if report is None else sum(r.nbytes for r in rows if is_accounted_for(r))
    return tuple(sorted(found, key=lambda row: -row.nbytes)), nbytes


def _buffer(row: CompiledBuffer, role: OomRole, stacked: bool) -> OomBuffer:
    plain = shape_of(row.shape)
    padding = 0 if plain is None else row.nbytes - row.count * plain.nbytes
    return OomBuffer(
        row.kind,
        row.nbytes,
        row.count,
        padding_nbytes=padding if padding > _ROUNDING * row.nbytes else 0,
        shape=row.shape,
        opcode=row.opcode,
        role=role,
        stacked=stacked,
        source=_with_code(row.source),
        residual=row.residual,
        origin=row.origin,
    )


def _has_after(first: re.Pattern[str], then: re.Pattern[str], op_name: str) -> bool:
    start = first.search(op_name)
    return start is not None and then.search(op_name, start.end()) is not None


def _role(op_name: str) -> OomRole:
    """Return which pass an operation is of, by its name."""
    if _RECOMPUTE.search(op_name) or _has_after(_CHECKPOINT, _BACKWARD, op_name):
        return "recompute"
    if _BACKWARD.search(op_name):
        return "backward"
    return "forward" if _FORWARD.search(op_name) else ""


def _files(residuals: Iterable[Residual]) -> frozenset[str]:
    """Return the files that the lines of residuals are in."""
    places = (
        place
        for residual in residuals
        if isinstance(origin := residual.origin, Computed)
        for place in (origin.location, origin.library, *origin.stack)
    )
    return frozenset(os.path.abspath(place.file) for place in places if place is not None)


def as_here(buffer: PeakBuffer, files: frozenset[str]) -> PeakBuffer:
    """Return a buffer with its file as this machine has it, where the log is of another.

    That is the one that agrees in most of the last parts of the path, if there is only one.
    """
    if not buffer.file or buffer.file in files:
        return buffer
    parts = buffer.file.split("/")
    agreeing: dict[int, list[str]] = defaultdict(list)
    for file in files:
        there = file.split(os.sep)
        same = 0
        while same < min(len(parts), len(there)) and parts[-1 - same] == there[-1 - same]:
            same += 1
        if same:
            agreeing[same].append(file)
    best = agreeing[max(agreeing)] if agreeing else []
    return replace(buffer, file=best[0]) if len(best) == 1 else buffer


def _with_code(source: Source) -> Source:
    """Return a line that a log names with its code, where its file is on this machine."""
    location = source.location
    if location is None:
        return source
    file = location.file.removeprefix(os.path.join(os.getcwd(), ""))
    code = location.code
    if not code and is_source(location.file):
        code = linecache.getline(location.file, location.line).strip()
    return replace(source, location=replace(location, file=file, code=code))


def is_source(file: str) -> bool:
    """Return whether a file is one of source code: a log may name a device instead."""
    try:
        return (
            file.endswith(".py")
            and os.path.isfile(file)
            and os.path.getsize(file) <= _LONGEST_SOURCE
        )
    except (OSError, ValueError):
        return False

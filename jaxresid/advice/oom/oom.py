"""From a log or a dump of a program that ran out of memory to what to do about it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from jaxresid.advice.check.budgets import live_by_line
from jaxresid.advice.oom.buffers import oom_buffers
from jaxresid.advice.oom.causes import cause_of, padding_of
from jaxresid.advice.oom.files import lines_of
from jaxresid.advice.oom.functions import named_function
from jaxresid.advice.oom.ways import Names, ways_out
from jaxresid.base.errors import JaxresidError
from jaxresid.results import OomBuffer, OomOther, OomParts, OomReport, OomTrace, Report, WayOut
from jaxresid.xla.logs.dumps import read_dump
from jaxresid.xla.logs.failure import Failure
from jaxresid.xla.logs.reading import read_log
from jaxresid.xla.logs.where import place_of

_DUMP = WayOut("dump", "XLA_FLAGS=--xla_dump_to=DUMP python train.py; jaxresid oom DUMP")
_LINES = 8  # of the trace


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was read of a log or a dump.

    Attributes:
      failures: the lacks of memory, the one that says most first.
      from_dump: whether it was a dump.
      notes: what restricts the reading.
      hints: lines that speak of memory, where no lack of it is told of that is known.
    """

    failures: tuple[Failure, ...]
    from_dump: bool = False
    notes: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """The place that the figures or the log name; '' where they name none."""
        return place_of(self.failures[0]) if self.failures else ""

    @property
    def platform(self) -> str:
        """Whose text it is, `tpu`; '' where that cannot be told."""
        return self.failures[0].platform if self.failures else ""


def oom(log: str | Path | Iterable[str], report: Report | None = None) -> OomReport:
    """Say what filled the memory of a program that ran out of it, and what to try.

    Nothing is compiled or run, and without a report JAX is not loaded.

    Args:
      log: the text of the log, as it was printed or pasted; its lines; or, as a `Path`, a file, or
        the folder that XLA was told to dump into (`XLA_FLAGS=--xla_dump_to=FOLDER`).
      report: the report of the function or training step that ran out of memory, by
        `jaxresid.inspect`, to say which of the buffers are its residuals, and what it takes.

    Raises:
      JaxresidError: The file or folder cannot be read, or is no log and no dump.
    """
    if isinstance(log, Path):
        return reported(evidence_of_path(log), report)
    return reported(evidence_of_lines(log.splitlines() if isinstance(log, str) else log), report)


def evidence_of_path(path: Path) -> Evidence:
    """Return what a file with a log, or a folder with a dump, says.

    Raises:
      JaxresidError: As `oom`.
    """
    if path.is_dir():
        return _of_dump(path)
    with contextlib.closing(lines_of(path)) as lines:
        return evidence_of_lines(lines)


def _of_dump(folder: Path) -> Evidence:
    """Return what a dump says of the program in it that needs most.

    Raises:
      JaxresidError: As `oom`.
    """
    try:
        failure, count = read_dump(folder)
    except OSError as e:
        raise JaxresidError(f"cannot read {folder}: {e.strerror or e}") from e
    if failure is None:
        raise JaxresidError(
            f"{folder} has no buffer assignment of XLA's; make a dump with"
            f" XLA_FLAGS=--xla_dump_to={folder}, or give a log"
        )
    notes = []
    if count > 1:
        notes.append(f"of {count} programs in the dump this is the one that needs most")
    return Evidence((failure,), from_dump=True, notes=tuple(notes))


def evidence_of_lines(lines: Iterable[str]) -> Evidence:
    """Return what the lines of a log say.

    Args:
      lines: the lines; they are read once, and a log of any length fits.
    """
    log = read_log(lines)
    notes = [*log.notes]
    if not log.failures and log.not_failures:
        times = "once" if log.not_failures == 1 else f"{log.not_failures} times"
        notes.append(
            f"an allocator says {times} that it would have liked more memory, which is no failure"
        )
    return Evidence(log.failures, notes=tuple(notes), hints=log.hints)


def reported(
    evidence: Evidence, report: Report | None = None, names: Names | None = None
) -> OomReport:
    """Return the report of the lack of memory that says most.

    Args:
      evidence: what a log or a dump says.
      report: as in `oom`.
      names: what commands are written with; None: what the log and the report name.
    """
    if not evidence.failures:
        ways = (_DUMP,) if evidence.hints else ()
        return OomReport("unknown", ways=ways, hints=evidence.hints, notes=evidence.notes)
    failure, *others = evidence.failures
    buffers, matched_nbytes = oom_buffers(failure.buffers, report)
    parts = failure.parts
    cause, is_certain = cause_of(failure, parts, buffers)
    on = evidence.place
    function = named_function(failure.function)
    if names is None:
        target = function if report is None else report.target.name
        place = on or ("" if report is None else report.place.name)
        names = Names(target, place or Names().place, None, None) if target else Names()
        names = replace(names, place=place or Names().place)
    smallest = failure.rematerialized
    return OomReport(
        cause=cause,
        is_certain=is_certain,
        source="dump" if evidence.from_dump else "log",
        platform=failure.platform,
        on=on,
        phase=failure.phase,
        program=failure.program,
        required_nbytes=failure.required_nbytes,
        capacity_nbytes=failure.capacity_nbytes,
        requested_nbytes=failure.requested_nbytes,
        rematerialized_nbytes=None if smallest is None else smallest.nbytes,
        rematerialization_limit_nbytes=None if smallest is None else smallest.limit_nbytes,
        parts=replace(parts, padding_nbytes=_padding(parts, buffers)),
        pool=failure.pool,
        buffers=buffers,
        matched_nbytes=matched_nbytes,
        ways=ways_out(
            cause, failure, parts, buffers, names, from_dump=evidence.from_dump, report=report
        ),
        said=failure.said,
        processes=failure.processes,
        others=tuple(
            OomOther(o.said, o.required_nbytes, o.requested_nbytes, o.processes) for o in others
        ),
        target=None if report is None else report.target,
        trace=None if report is None else _trace(report),
        function=function,
        notes=(*evidence.notes, *(() if report is None else report.warnings)),
    )


def _trace(report: Report) -> OomTrace:
    """Return what a report says of the memory of its program."""
    peak = report.peak
    return OomTrace(
        report.place.name,
        report.place.origin,
        None if peak is None else peak.nbytes,
        None if peak is None else peak.low_nbytes,
        None if peak is None else peak.high_nbytes,
        None if peak is None else peak.arguments_nbytes,
        report.totals.computed_nbytes,
        live_by_line(report)[:_LINES],
    )


def _padding(parts: OomParts, buffers: Sequence[OomBuffer]) -> int | None:
    known = parts.padding_nbytes is not None or any(b.shape for b in buffers)
    return padding_of(parts, buffers) if known else None

"""From a log or a dump of a program that ran out of memory to what to do about it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path

from jaxresid.advice.oom.buffers import oom_buffers
from jaxresid.advice.oom.causes import cause_of, padding_of
from jaxresid.advice.oom.files import lines_of
from jaxresid.advice.oom.ways import Names, ways_out
from jaxresid.errors import JaxresidError
from jaxresid.model import OomBuffer, OomOther, OomParts, OomReport, Report, WayOut
from jaxresid.text.units import format_bytes
from jaxresid.xla.logs.dumps import read_dump
from jaxresid.xla.logs.failure import Failure, Log
from jaxresid.xla.logs.reading import read_log
from jaxresid.xla.logs.where import place_of

_DUMP = WayOut("dump", "XLA_FLAGS=--xla_dump_to=DUMP python train.py; jaxresid oom DUMP")


def oom(log: str | Path | Iterable[str], report: Report | None = None) -> OomReport:
    """Say what filled the memory of a program that ran out of it, and what to try.

    Nothing is compiled or run, and without a report JAX is not loaded.

    Args:
      log: the text of the log, as it was printed or pasted; its lines; or, as a `Path`, a file, or
        the folder that XLA was told to dump into (`XLA_FLAGS=--xla_dump_to=FOLDER`).
      report: the report of the function or training step that ran out of memory, by
        `jaxresid.inspect`, to say which of the buffers are its residuals.

    Raises:
      JaxresidError: The file or folder cannot be read, or is no log and no dump.
    """
    if isinstance(log, Path):
        return oom_of_path(log, report)
    lines = log.splitlines() if isinstance(log, str) else log
    return oom_of_lines(lines, report)


def oom_of_path(path: Path, report: Report | None = None, names: Names | None = None) -> OomReport:
    """Return what a file with a log, or a folder with a dump, says.

    Args:
      path: the file or folder.
      report: as in `oom`.
      names: what commands are written with, as far as it is known.

    Raises:
      JaxresidError: As `oom`.
    """
    if path.is_dir():
        return _of_dump(path, report, names)
    with contextlib.closing(lines_of(path)) as lines:
        return oom_of_lines(lines, report, names)


def _of_dump(folder: Path, report: Report | None, names: Names | None) -> OomReport:
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
    return reported(failure, report, names, from_dump=True, notes=notes)


def oom_of_lines(
    lines: Iterable[str], report: Report | None = None, names: Names | None = None
) -> OomReport:
    """Return what the lines of a log say.

    Args:
      lines: the lines; they are read once, and a log of any length fits.
      report: as in `oom`.
      names: what commands are written with, as far as it is known.
    """
    log = read_log(lines)
    if not log.failures:
        return _unknown(log)
    failure, *others = log.failures
    return reported(failure, report, names, others=others, notes=log.notes)


def reported(
    failure: Failure,
    report: Report | None,
    names: Names | None,
    *,
    others: Sequence[Failure] = (),
    from_dump: bool = False,
    notes: Sequence[str] = (),
) -> OomReport:
    """Return the report of one lack of memory.

    Args:
      failure: what a log or a dump says of it.
      report: as in `oom`.
      names: what commands are written with, as far as it is known.
      others: further ones in the same log.
      from_dump: whether it was read from a dump.
      notes: what restricts the answer.
    """
    buffers, matched_nbytes = oom_buffers(failure.buffers, report)
    parts = failure.parts
    cause, is_certain = cause_of(failure, parts, buffers)
    on = place_of(failure)
    names = names or Names()
    if names.place == Names().place and on:
        names = dataclasses.replace(names, place=on)
    if report is not None and names.target == Names().target:
        names = dataclasses.replace(names, target=report.target.name)
    return OomReport(
        cause=cause,
        is_certain=is_certain,
        source="dump" if from_dump else "log",
        platform=failure.platform,
        on=on,
        phase=failure.phase,
        program=failure.program,
        required_nbytes=failure.required_nbytes,
        capacity_nbytes=failure.capacity_nbytes,
        requested_nbytes=failure.requested_nbytes,
        parts=dataclasses.replace(parts, padding_nbytes=_padding(parts, buffers)),
        pool=failure.pool,
        buffers=buffers,
        matched_nbytes=matched_nbytes,
        ways=ways_out(cause, failure, parts, buffers, names, from_dump=from_dump),
        said=failure.said,
        processes=failure.processes,
        others=tuple(
            OomOther(o.said, o.required_nbytes, o.requested_nbytes, o.processes) for o in others
        ),
        target=None if report is None else report.target,
        notes=(*notes, *_kept(report, buffers)),
    )


def _kept(report: Report | None, buffers: Sequence[OomBuffer]) -> tuple[str, ...]:
    """Return what the target keeps, where the log lists no buffers to match to that."""
    if report is None or buffers:
        return ()
    kept = format_bytes(report.totals.computed_nbytes)
    return (
        f"the log lists no buffers; by its trace {report.target.name} keeps {kept} for its backward"
        " pass (jaxresid report lists it by line)",
    )


def _padding(parts: OomParts, buffers: Sequence[OomBuffer]) -> int | None:
    known = parts.padding_nbytes is not None or any(b.shape for b in buffers)
    return padding_of(parts, buffers) if known else None


def _unknown(log: Log) -> OomReport:
    """Return the report of a log that tells of no lack of memory that is known."""
    notes = [*log.notes]
    if log.not_failures:
        times = "once" if log.not_failures == 1 else f"{log.not_failures} times"
        notes.append(
            f"an allocator says {times} that it would have liked more memory, which is no failure"
        )
    return OomReport(
        cause="unknown", ways=(_DUMP,) if log.hints else (), hints=log.hints, notes=tuple(notes)
    )

"""Read the lacks of memory that a log tells of, in one pass, in bounded memory."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from jaxresid.results import OomParts, OomPool
from jaxresid.xla.logs.failure import Failure, Log, Rematerialized
from jaxresid.xla.logs.lines import Line, read_line
from jaxresid.xla.logs.pool import PoolReader
from jaxresid.xla.logs.sentences import OPENS, needed, parse_failure, rematerialized, requested
from jaxresid.xla.logs.tracebacks import TracebackReader, UserFunction, begins

# A part of a log that is about a lack of memory ends after so many lines that are not.
_QUIET = 80
_BLOCK_LINES = 4_000
_FAILURES = 100
_PROCESSES = 10_000
_HINTS = 8
_HINT_LENGTH = 200
_NARROWEST = 60  # of terminals that break lines
_NOT_FAILED = "not a failure"
_DEVICE = re.compile(r"StreamExecutor \[?device \(?\d+\)?\]?: ([^,]{1,200}),")
_TAIL = 60  # of the line before, in which a word may begin that a terminal broke
# Lines that belong to a lack of memory once it is told of.
_FIELD = re.compile(
    r"Size: |Shape: |Subshape: |Operator: |XLA [Ll]abel|Allocation type|={8}|allocation: "
    r"|fragmentation|Buffer \d+:|Unpadded|Extra memory|hbm|HLO temp|^\s*reserved\s"
    r"|^\s*(?:program|arguments|global|scoped)\s|Output size|(?:Limit|InUse|MaxInUse|NumAllocs"
    r"|MaxAllocSize|Reserved|PeakReserved|LargestFreeBlock):|[*_]{50}|Chunks|Total size in pool"
    r"|Free memory/Total|CU_MEMPOOL|bytes free, "
)
# What every line has that matters before a lack of memory is told of.
_MAYBE = re.compile(
    r"[Mm]emory|MEMORY|[Aa]lloc|OOM|EXHAUSTED|[Hh]bm|HBM|Size: |Buffer 1:|Limit:|InUse:|[*_]{50}"
    r"|StreamExecutor|CUDNN|cudnn|oom-kill|at the bottom|exceeds the base|Peak buffers"
)
_HINT = re.compile(
    r"RESOURCE[_ ]EXHAUSTED|\bOOM\b|[Oo]ut[ -]of[ -][Mm]emory|OutOfMemory|MemoryError|bad_alloc"
    r"|Cannot allocate memory|memory",
)


class _Process:
    """The part of a process's log that is read, as far as it is about a lack of memory."""

    def __init__(self) -> None:
        self.pool = PoolReader()
        self.lines: list[Line] = []
        self.quiet = 0
        self.asked: int | None = None
        self.needs: int | None = None
        self.device = ""
        self.rematerialized: Rematerialized | None = None
        self.traceback = TracebackReader()
        self.function: UserFunction | None = None

    def open(self) -> bool:
        """Return whether the last lines were about a lack of memory."""
        return bool(self.lines)

    def is_other(self, asked: int | None, needs: int | None) -> bool:
        """Return whether a sentence is about another lack of memory than the lines before it."""
        if _differ(asked, self.asked) or _differ(needs, self.needs):
            return True
        alone = self.needs if asked is not None else self.asked if needs is not None else None
        return alone is not None and (asked is None) != (self.asked is None)


def read_log(lines: Iterable[str]) -> Log:
    """Return the lacks of memory that a log tells of.

    Args:
      lines: its lines; a log of any length is read in one pass, and little of it is kept.
    """
    reader = _Reader()
    for line in lines:
        reader.read(line)
    return reader.log()


class _Reader:
    def __init__(self) -> None:
        self._processes: dict[str, _Process] = {}
        self._found: list[tuple[str, Failure]] = []
        self._hints: dict[str, None] = {}
        self._lines = 0
        self._not_failures = 0
        self._left_out = 0
        self._open = 0
        self._tracebacks = 0  # that are open
        self._last = ""
        self._before = ""

    def read(self, raw: str) -> None:
        """Take in a line of the log, as it is."""
        self._lines += 1
        before, self._before = self._before, raw
        if " of size " in raw and self._process(self._last).pool.read(raw):
            return
        is_traced = self._tracebacks or begins(raw)
        if not self._open and not is_traced and not _MAYBE.search(before[-_TAIL:] + raw):
            return
        line = read_line(raw)
        self._last = line.process or self._last
        self._read(self._last, line, read_line(before).text)

    def _process(self, name: str) -> _Process:
        if name not in self._processes and len(self._processes) >= _PROCESSES:
            name = ""
        return self._processes.setdefault(name, _Process())

    def _read(self, name: str, line: Line, before: str) -> None:
        process = self._process(name)
        if process.pool.read(line.text):
            return
        was_open = process.traceback.is_open
        function = process.traceback.read(line.text)
        self._tracebacks += process.traceback.is_open - was_open
        if (smallest := rematerialized(line.text)) is not None:
            process.rematerialized = smallest
        if "StreamExecutor" in line.text and (device := _DEVICE.search(line.text)):
            process.device = device[1]
        if _NOT_FAILED in line.text:
            self._not_failures += 1
            return
        opens = OPENS.search(line.text) is not None
        broken = not opens and OPENS.search(before[-_TAIL:] + line.text[:_TAIL])
        # A number at the end of a line may go on in the next one.
        is_whole = opens and not line.text[-1:].isdigit()
        asked = requested(line.text) if is_whole else None
        needs = needed(line.text) if is_whole else None
        if opens and process.open() and process.is_other(asked, needs):
            self._close(name, process)
        if opens and function is not None:
            process.function = function
        if opens or broken or process.open():
            if not process.open():
                self._open += 1
                process.lines += [Line(before, name, len(before))] * bool(broken)
            process.lines.append(line)
            process.asked = asked or process.asked
            process.needs = needs or process.needs
            spoken = opens or _FIELD.search(line.text) is not None
            process.quiet = 0 if spoken else process.quiet + 1
            if process.quiet > _QUIET or len(process.lines) > _BLOCK_LINES:
                self._close(name, process)
        elif len(self._hints) < _HINTS and _HINT.search(line.text):
            self._hints[" ".join(line.text.split())[:_HINT_LENGTH]] = None

    def log(self) -> Log:
        """Return all that was found."""
        for name, process in self._processes.items():
            self._close(name, process)
        failures = _merged(self._found)
        notes = []
        if self._left_out:
            notes.append(f"{self._left_out} more lacks of memory were not read")
        return Log(
            tuple(sorted(failures, key=_says, reverse=True)),
            tuple(self._hints),
            self._lines,
            max(len([name for name in self._processes if name]), 1),
            self._not_failures,
            tuple(notes),
        )

    def _close(self, name: str, process: _Process) -> None:
        if not process.lines:
            return
        lines, process.lines, process.quiet = process.lines, [], 0
        self._open -= 1
        process.asked = process.needs = None
        function, process.function = process.function, None
        if len(self._found) >= _FAILURES:
            self._left_out += 1
            return
        found = parse_failure(_whole(lines), process.pool.pool())
        if found is not None:
            found = replace(
                found,
                device=process.device,
                rematerialized=process.rematerialized,
                function=function,
            )
            self._found.append((name, found))


def _differ(one: int | None, other: int | None) -> bool:
    """Return whether two allocations are not the same one, which allocators round."""
    if one is None or other is None:
        return False
    return abs(one - other) > max(max(one, other) // 200, 1024)


def _whole(lines: list[Line]) -> list[str]:
    """Return the lines of a part of a log, those together that were broken."""
    width = max(line.width for line in lines)
    full = sum(line.width == width for line in lines)
    breaks = width >= _NARROWEST and full >= 3
    found: list[str] = []
    goes_on = False
    for line in lines:
        if goes_on or (found and _is_open(found[-1])):
            found[-1] += line.text
        else:
            found.append(line.text)
        goes_on = breaks and line.width == width
    return _sentences_joined(found)


def _is_open(text: str) -> bool:
    """Return whether a quotation in a line has no end."""
    return text.count('"') % 2 == 1 and re.search(r'\w="', text) is not None and len(text) < 20_000


def _sentences_joined(lines: list[str]) -> list[str]:
    """Return lines with a sentence together that was broken within a word."""
    found: list[str] = []
    for line in lines:
        joined = found[-1] + line if found else line
        if (
            found
            and not OPENS.search(found[-1])
            and not OPENS.search(line)
            and OPENS.search(found[-1][-_TAIL:] + line[:_TAIL])
        ):
            found[-1] = joined
        else:
            found.append(line)
    return found


def _merged(found: list[tuple[str, Failure]]) -> list[Failure]:
    """Return each lack of memory once, with all that was said of it."""
    merged: list[tuple[Failure, dict[str, int]]] = []
    for name, failure in found:
        for n, (known, names) in enumerate(merged):
            if _is_same(known, failure):
                names[name] = names.get(name, 0) + 1
                merged[n] = _filled(known, failure), names
                break
        else:
            merged.append((failure, {name: 1}))
    return [
        replace(failure, processes=len(names), count=max(names.values()))
        for failure, names in merged
    ]


def _is_same(one: Failure, other: Failure) -> bool:
    if one.memory != other.memory or one.before_start != other.before_start:
        return False
    pairs = [
        (one.required_nbytes, other.required_nbytes),
        (one.requested_nbytes, other.requested_nbytes),
        (one.capacity_nbytes, other.capacity_nbytes),
    ]
    if any(_differ(a, b) for a, b in pairs):
        return False
    figures = [any(x is not None for x in side) for side in zip(*pairs, strict=True)]
    shared = any(a is not None and b is not None for a, b in pairs)
    return shared or not all(figures)


def _filled(one: Failure, other: Failure) -> Failure:
    """Return a failure with what another telling of it adds."""
    first, second = (one, other) if _says(one) >= _says(other) else (other, one)
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(Failure):
        mine, theirs = getattr(first, field.name), getattr(second, field.name)
        if isinstance(mine, OomPool | OomParts):
            changes[field.name] = _with_values(mine, theirs)
        elif mine in (None, "", ()):
            changes[field.name] = theirs
    return replace(first, **changes)


def _with_values(one: Any, other: Any) -> Any:
    changes = {
        field.name: getattr(other, field.name)
        for field in dataclasses.fields(one)
        if getattr(one, field.name) is None
    }
    return replace(one, **changes)


def _says(failure: Failure) -> int:
    """Return how much a failure says: a program's need most, then its buffers, then a request."""
    parts = sum(getattr(failure.parts, f.name) is not None for f in dataclasses.fields(OomParts))
    return (
        100 * (failure.required_nbytes is not None)
        + 40 * bool(failure.buffers)
        + 10 * parts
        + 20 * (failure.requested_nbytes is not None)
        + 5 * (failure.capacity_nbytes is not None)
        + (failure.memory == "device")
    )

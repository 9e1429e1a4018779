"""Read and write the results file of a sweep: JSON lines, each written whole once it is known.

A sweep that is run again continues from its file: rows whose keys are in it are not compiled again.
Lines of other targets, or of code that has changed since, stay in it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from jaxresid.base.errors import JaxresidError
from jaxresid.results import SCHEMA_VERSION, SweepRow
from jaxresid.serialization.decoding import decoded
from jaxresid.serialization.layouts import DOCUMENTS

# How a line begins.
_START = b'{"schema":1,"target":"'


@dataclass(slots=True)
class Results:
    """A results file that only this process writes, made by `open`.

    Attributes:
      path: The path of the file.
      rows: The rows that were in it, by key; of several rows with one key, the last.
      warnings: What was wrong with it.
    """

    path: str
    rows: Mapping[str, SweepRow]
    warnings: tuple[str, ...]
    _descriptor: int = field(repr=False)

    @classmethod
    @contextlib.contextmanager
    def open(cls, path: str) -> Iterator[Self]:
        """Open or create the file and hold it until the end; a torn last line is repaired.

        Raises:
          JaxresidError: It cannot be written, another sweep writes it, or it holds something else.
        """
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        except OSError as e:
            raise _unwritable(path, e) from e
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise JaxresidError(
                    f"{path} is not a regular file; a sweep needs one to read earlier results from"
                )
            _lock(descriptor, path)
            rows, warnings = _read(descriptor, path)
            yield cls(path, rows, warnings, descriptor)
        finally:
            os.close(descriptor)

    def append(self, row: SweepRow) -> None:
        """Append a row as a line, and return once it is on the disk.

        Raises:
          JaxresidError: It cannot be written; what was in the file before is still there.
        """
        line = row.to_json().encode() + b"\n"
        before = os.fstat(self._descriptor).st_size
        try:
            written = os.write(self._descriptor, line)
            if written < len(line):  # there was room for some of it
                os.ftruncate(self._descriptor, before)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self._descriptor)
        except OSError as e:
            raise _unwritable(self.path, e) from e


def _unwritable(path: str, error: OSError) -> JaxresidError:
    return JaxresidError(f"cannot write {path}: {error.strerror or error}")


def _lock(descriptor: int, path: str) -> None:
    try:
        import fcntl
    except ImportError:  # Windows has none, and appending is all that two sweeps would do
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise JaxresidError(
            f"another sweep is writing {path}; wait for it, or choose another file with --results"
        ) from None
    except OSError:  # a file system without locks
        return


def _read(descriptor: int, path: str) -> tuple[dict[str, SweepRow], tuple[str, ...]]:
    with open(descriptor, "rb", closefd=False) as file:
        *lines, tail = file.read().split(b"\n")
    kept = sum(len(line) + 1 for line in lines)
    if is_torn := bool(tail) and not _is_json(tail):
        compact = tail.replace(b" ", b"")
        is_ours = compact.startswith(_START) or _START.startswith(compact)
    else:
        is_ours, lines = not tail, [*lines, tail]
    found = {number: row_of(line) for number, line in enumerate(lines, 1) if line.strip()}
    if not any(found.values()) and (found or not is_ours):
        raise JaxresidError(
            f"{path} contains something other than the results of a sweep, and was left as it is;"
            " choose another file with --results"
        )
    warnings = []
    unread = [str(number) for number, row in found.items() if row is None]
    if unread:
        which = f"line {unread[0]}" if len(unread) == 1 else f"lines {', '.join(unread)}"
        warnings.append(f"{path}: {which} cannot be read as a result; skipped")
    try:
        if is_torn:
            os.ftruncate(descriptor, kept)
            warnings.append(f"{path}: the last line was incomplete; removed")
        elif tail:
            os.write(descriptor, b"\n")
    except OSError as e:
        raise _unwritable(path, e) from e
    rows = [row for row in found.values() if row is not None]
    return {row.key: row for row in rows}, tuple(warnings)


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def row_of(line: bytes) -> SweepRow | None:
    """Return the row that `SweepRow.to_json` wrote as a line; None if it did not write the line."""
    try:
        data = json.loads(line)
        if data["schema"] != SCHEMA_VERSION:
            return None
        row: SweepRow = decoded(SweepRow, data, DOCUMENTS)
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return replace(row, resumed=True)

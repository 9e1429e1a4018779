"""The last result of each named target, kept in the user's cache for editors to show.

An entry is a line with its head, as JSON, and a line with the result: its JSON document, and for
`check` the findings, for `plan` the edits. It is parsed and checked for its types when it is read;
nothing in it is run. A cache that cannot be written keeps nothing, one that cannot be read holds
nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from typing import Literal as OneOf

from jaxresid.base import regular_files, user_cache
from jaxresid.base.violations import Violation
from jaxresid.results import SCHEMA_VERSION, Plan, Report
from jaxresid.serialization.decoding import decoded
from jaxresid.serialization.encoding import json_document
from jaxresid.serialization.kinds import KINDS
from jaxresid.serialization.layouts import DOCUMENTS
from jaxresid.serialization.source_digests import (
    SourceDigest,
    digest_of,
    files_in,
    line_digests,
)

Command = OneOf["report", "check", "plan"]
_FORMAT = 2
_LIMIT_NBYTES = 128 << 20
# A report of a large model is some megabytes; more is not for an editor to read.
_MOST_NBYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class KeptEdit:
    """What a plan makes of a file.

    Attributes:
      path: the absolute path.
      digest: the digest of its content before.
      text: its text afterwards.
    """

    path: str
    digest: str
    text: str


@dataclass(frozen=True, slots=True)
class Head:
    """What a kept result is of.

    Attributes:
      command: the command that made it.
      target: the name of the target.
      size: the batch size, where `check` had several; else None.
      folder: the folder of the configuration file that names it.
      directory: the working directory, which paths in the result are relative to.
      words: the words of the command line behind the command, the target's name first.
      made: when it was made, in seconds since 1970.
      sources: the files that it depends on.
    """

    command: Command
    target: str
    size: int | None
    folder: str
    directory: str
    words: tuple[str, ...]
    made: float
    sources: tuple[SourceDigest, ...]

    @property
    def name(self) -> str:
        """The name of the target, with the batch size where `check` had several."""
        return self.target if self.size is None else f"{self.target} --batch {self.size}"


@dataclass(frozen=True)
class Kept:
    """A kept result.

    Attributes:
      head: what it is of.
      result: the report, of `report` and `check`, or the plan.
      findings: the findings of `check`.
      edits: what the plan changes.
    """

    head: Head
    result: Report | Plan
    findings: tuple[Violation, ...] = ()
    edits: tuple[KeptEdit, ...] = ()

    def absolute(self, file: str) -> str:
        """Return the absolute path of a file that the result names."""
        return os.path.normpath(os.path.join(self.head.directory, file))

    @property
    def report(self) -> Report:
        """The report of `report` and `check`."""
        assert isinstance(self.result, Report)
        return self.result

    @property
    def plan(self) -> Plan:
        """The plan of `plan`."""
        assert isinstance(self.result, Plan)
        return self.result

    @cached_property
    def sources(self) -> dict[str, SourceDigest]:
        """The files that it depends on, by their paths."""
        return {source.path: source for source in self.head.sources}


def keep(
    command: Command,
    target: str,
    folder: str,
    words: Sequence[str],
    result: Report | Plan,
    *,
    size: int | None = None,
    since: float,
    now: float,
    loaded: Iterable[str] = (),
    findings: Sequence[Violation] = (),
    edits: Sequence[KeptEdit] = (),
) -> None:
    """Keep a result of a named target in place of the last one; or nothing, if it cannot be.

    Args:
      command: the command that made it.
      target: the name of the target.
      folder: the folder of the configuration file that names it.
      words: the words of the command line behind the command.
      result: the result.
      size: the batch size, where it is one of several.
      since: when the program began to be loaded, in seconds since 1970.
      now: the time.
      loaded: further files that it depends on.
      findings: what `check` found.
      edits: what the plan changes.
    """
    document = json.loads(json_document(result))
    named = {*map(os.path.abspath, files_in(document)), *map(os.path.abspath, loaded)}
    sources = tuple(_digested(sorted(named), since))
    head = Head(command, target, size, folder, os.getcwd(), tuple(words), now, sources)
    body = {
        "result": document,
        "findings": [asdict(each) for each in findings],
        "edits": [asdict(each) for each in edits],
    }
    data = _line(body)
    first = {"jaxresid-result": _FORMAT, "digest": digest_of(data), **asdict(head)}
    with suppress(OSError):
        where = user_cache.results_folder()
        user_cache.prepare(where)
        user_cache.write(where / _name(head), _line(first) + b"\n" + data)
        user_cache.drop_oldest(where, _LIMIT_NBYTES)


def read(file: Path) -> Kept | None:
    """Return a kept result; None where the file cannot be read or holds none of this version."""
    try:
        if file.stat().st_size > _MOST_NBYTES:
            return None
        first, _, data = regular_files.read(file).partition(b"\n")
        found = json.loads(first)
        if found.pop("jaxresid-result") != _FORMAT or found.pop("digest") != digest_of(data):
            return None
        head = decoded(Head, found)
        if file.name != _name(head):
            return None
        body = json.loads(data)
        document = body["result"]
        kind = KINDS["plan" if head.command == "plan" else "report"]
        if document["schema"] != SCHEMA_VERSION or KINDS[document["kind"]] is not kind:
            return None
        return Kept(
            head,
            decoded(kind, document, DOCUMENTS),
            decoded(tuple[Violation, ...], body["findings"]),
            decoded(tuple[KeptEdit, ...], body["edits"]),
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _name(head: Head) -> str:
    named = json.dumps([head.folder, head.name, head.command]).encode()
    return f"{hashlib.sha256(named).hexdigest()}.json"


def _line(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def _digested(paths: Iterable[str], since: float) -> Iterator[SourceDigest]:
    """Yield the digests of files that are there; '' for one that was written since then."""
    for path in paths:
        with suppress(OSError, ValueError):
            file = Path(path)
            is_late = file.stat().st_mtime > since
            content = regular_files.read(Path(os.path.realpath(path)))
            is_installed = "site-packages" in path or "dist-packages" in path
            lines = () if is_installed or is_late else line_digests(content)
            yield SourceDigest(path, "" if is_late else digest_of(content), lines)

"""What every format reads: the findings in order, their source lines, their paths."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import PurePath

from jaxresid.violations import Linted, RuleInfo, Span, Violation

STDIN = "-"


@dataclass(frozen=True)
class Run:
    """One run of the linter, as `render` was called; `root` is absolute."""

    results: tuple[Linted, ...]
    rules: tuple[RuleInfo, ...]
    root: str
    version: str
    color: bool = False
    width: int = 80
    fixed: int = 0
    unsafe_fixes: bool = False
    summary: bool = True

    @cached_property
    def violations(self) -> tuple[Violation, ...]:
        """All of them, sorted across files."""
        found = (v for linted in self.results for v in linted.violations)
        return tuple(sorted(found, key=lambda v: v.sort_key))

    @cached_property
    def _lines(self) -> dict[tuple[str, int | None], tuple[str, ...]]:
        return {(r.path, cell): lines for r in self.results for cell, lines in r.lines.items()}

    def by_file(self) -> Iterator[tuple[str, list[Violation]]]:
        """Each path that has violations, with them."""
        for path, group in groupby(self.violations, key=lambda v: v.path):
            yield path, list(group)

    def lines(self, path: str, cell: int | None) -> tuple[str, ...]:
        """The lines of a file or cell; none where they were not kept."""
        return self._lines.get((path, cell), ())

    def line(self, path: str, cell: int | None, row: int) -> str | None:
        """A line by its 1-based row, where it is known."""
        lines = self.lines(path, cell)
        return lines[row - 1] if 1 <= row <= len(lines) else None

    def absolute(self, path: str) -> str:
        """The path from the file system's root, links unresolved; standard input stays `-`."""
        return path if path == STDIN else os.path.normpath(os.path.join(self.root, path))

    def relative(self, path: str) -> str:
        """The path from `root` with `/` between its parts; absolute where it is outside."""
        if path == STDIN:
            return path
        whole = PurePath(self.absolute(path))
        inside = whole.is_relative_to(self.root)
        return (whole.relative_to(self.root) if inside else whole).as_posix()

    def fixable(self, violation: Violation) -> bool:
        """Whether `--fix` as it was called, or would be, mends it."""
        return is_fixable(violation, self.unsafe_fixes)


def is_fixable(violation: Violation, unsafe_fixes: bool) -> bool:
    fix = violation.fix
    return fix is not None and (unsafe_fixes or fix.applicability == "safe")


def last_row(span: Span) -> int:
    """The last row with text of the span: one that ends before a row's first column ends above."""
    return span.end_row - 1 if span.end_column == 0 and span.end_row > span.row else span.end_row


def utf16_column(line: str | None, column: int) -> int:
    """UTF-16 code units before a column of code points; as given where the line is not known."""
    before = (line or "")[:column]
    return len(before.encode("utf-16-le", "surrogatepass")) // 2 + column - len(before)


def utf8_column(line: str | None, column: int) -> int:
    """UTF-8 bytes before a column of code points; as given where the line is not known."""
    before = (line or "")[:column]
    return len(before.encode("utf-8", "surrogatepass")) + column - len(before)


def position(path: str, cell: int | None, span: Span) -> str:
    """`model.py:3:5`, `notebook.ipynb:cell 2:3:5`."""
    return f"{path}:{position_inside(cell, span)}"


def position_inside(cell: int | None, span: Span) -> str:
    """`3:5`, `cell 2:3:5`."""
    return f"{f'cell {cell}:' if cell else ''}{span.row}:{span.column + 1}"


def label(violation: Violation) -> str:
    """`JXR101`; `invalid-syntax:`, which is a word and no code, where a file was not linted."""
    return violation.code if violation.code != violation.name else f"{violation.code}:"


def message_lines(violation: Violation) -> list[str]:
    """Message, why and help for places that show plain text without an excerpt.

    Formats whose rows are rows of the file cannot point into a notebook; the message does.
    """
    cell = violation.cell
    where = f"{position_inside(cell, violation.span)}: " if cell else ""
    return [where + violation.message, *why_and_help(violation)]


def why_and_help(violation: Violation) -> list[str]:
    """A line each, of what there is."""
    lines = [violation.why, violation.help and f"help: {violation.help}"]
    return [line for line in lines if line]


def plain(value: object) -> object:
    """The value in JSON's types; JSON has no infinities."""
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [plain(item) for item in value]
    return str(value)


def fingerprints(run: Run) -> list[tuple[str, int]]:
    """For each violation a hash that stays when lines move, and its number among its equals.

    It hashes the rule and the line without its spacing; equal lines of a file are numbered from
    1. Without lines the message stands for them.
    """
    import hashlib

    seen: dict[tuple[str, str], int] = {}
    marks = []
    for v in run.violations:
        line = run.line(v.path, v.cell, v.span.row)
        text = " ".join((v.message if line is None else line).split())
        hashed = hashlib.sha256(f"{v.code}\0{text}".encode("utf-8", "surrogatepass"))
        digest = hashed.hexdigest()[:16]
        number = seen[v.path, digest] = seen.get((v.path, digest), 0) + 1
        marks.append((digest, number))
    return marks

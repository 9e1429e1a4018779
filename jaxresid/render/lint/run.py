"""The input that every format reads: the findings in order, their source lines, their paths."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import PurePath

from jaxresid.base.urls import rule_page
from jaxresid.base.violations import Linted, RuleInfo, Span, Violation

STDIN = "-"


@dataclass(frozen=True)
class Run:
    """One run of the linter, with the arguments that `render` was called with.

    The path in `root` is absolute.
    """

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
        """All violations, sorted across files."""
        found = (v for linted in self.results for v in linted.violations)
        return tuple(sorted(found, key=lambda v: v.sort_key))

    @cached_property
    def _lines(self) -> dict[tuple[str, int | None], tuple[str, ...]]:
        return {(r.path, cell): lines for r in self.results for cell, lines in r.lines.items()}

    def by_file(self) -> Iterator[tuple[str, list[Violation]]]:
        """Yield each path that has violations, with these violations."""
        for path, group in groupby(self.violations, key=lambda v: v.path):
            yield path, list(group)

    def lines(self, path: str, cell: int | None) -> tuple[str, ...]:
        """Return the lines of a file or cell; none where they were not kept."""
        return self._lines.get((path, cell), ())

    def line(self, path: str, cell: int | None, row: int) -> str | None:
        """Return a line by its 1-based row; None where it is not known."""
        lines = self.lines(path, cell)
        return lines[row - 1] if 1 <= row <= len(lines) else None

    def absolute(self, path: str) -> str:
        """Return a path from the root of the file system, with links unresolved.

        Standard input stays `-`.
        """
        return path if path == STDIN else os.path.normpath(os.path.join(self.root, path))

    def relative(self, path: str) -> str:
        """Return a path from `root` with `/` between its parts.

        It is absolute where it is outside `root`; standard input stays `-`.
        """
        if path == STDIN:
            return path
        whole = PurePath(self.absolute(path))
        inside = whole.is_relative_to(self.root)
        return (whole.relative_to(self.root) if inside else whole).as_posix()

    def fixable(self, violation: Violation) -> bool:
        """Return whether `--fix` as it was called, or would be, fixes a violation."""
        return is_fixable(violation, self.unsafe_fixes)


def is_fixable(violation: Violation, unsafe_fixes: bool) -> bool:
    """Return whether a violation has a fix that is safe, or any where unsafe ones count."""
    fix = violation.fix
    return fix is not None and (unsafe_fixes or fix.applicability == "safe")


def last_row(span: Span) -> int:
    """Return the last row that holds text of a span.

    A span that ends before the first column of a row ends in the row above.
    """
    return span.end_row - 1 if span.end_column == 0 and span.end_row > span.row else span.end_row


def utf16_column(line: str | None, column: int) -> int:
    """Return the UTF-16 code units before a column that counts code points.

    The column is returned as given where the line is not known.
    """
    before = (line or "")[:column]
    return len(before.encode("utf-16-le", "surrogatepass")) // 2 + column - len(before)


def utf8_column(line: str | None, column: int) -> int:
    """Return the UTF-8 bytes before a column that counts code points.

    The column is returned as given where the line is not known.
    """
    before = (line or "")[:column]
    return len(before.encode("utf-8", "surrogatepass")) + column - len(before)


def position(path: str, cell: int | None, span: Span) -> str:
    """Return a position as text: `model.py:3:5`, `notebook.ipynb:cell 2:3:5`."""
    return f"{path}:{position_inside(cell, span)}"


def position_inside(cell: int | None, span: Span) -> str:
    """Return a position inside a file as text: `3:5`, `cell 2:3:5`."""
    return f"{f'cell {cell}:' if cell else ''}{span.row}:{span.column + 1}"


def label(violation: Violation) -> str:
    """Return the code of a violation: `JXR101`.

    A file that was not linted has a word and no code: `invalid-syntax:`.
    """
    return violation.code if violation.code != violation.name else f"{violation.code}:"


def page(violation: Violation) -> str | None:
    """Return the address of the page on a violation's rule.

    None where there is no public documentation, and for files that were not linted.
    """
    return rule_page(violation.name) if violation.code != violation.name else None


def message_lines(violation: Violation) -> list[str]:
    """Return message, why and help for places that show plain text without an excerpt.

    Formats whose rows are rows of the file cannot point into a notebook; the message does.
    """
    cell = violation.cell
    where = f"{position_inside(cell, violation.span)}: " if cell else ""
    return [where + violation.message, *why_and_help(violation)]


def why_and_help(violation: Violation) -> list[str]:
    """Return the reason and the help of a violation, one line each, where there are any."""
    lines = [violation.why, violation.help and f"help: {violation.help}"]
    return [line for line in lines if line]


def plain(value: object) -> object:
    """Return a value in the types of JSON.

    Floats that are not finite become None, since JSON has no number for them.
    """
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
    """Return for each violation a hash that survives moved lines, and its number among equal ones.

    It hashes the rule and the line without its spacing; equal lines of a file are numbered from
    1. Where the line is not known the message is hashed instead.
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

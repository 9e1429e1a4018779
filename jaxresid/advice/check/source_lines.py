"""Place a finding as a violation at the user's line, as the linter places and words its own."""

from __future__ import annotations

import ast
import linecache
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxresid.base.violations import CRASHED_FINDING, Span, Violation
from jaxresid.inspector.call.jitted_by import definition
from jaxresid.inspector.jaxpr.frames import Frames
from jaxresid.linter.resolve.facts import Facts
from jaxresid.linter.rule import noqa_rows
from jaxresid.linter.rules import INDEX, TRACED
from jaxresid.linter.text.document import Document, read
from jaxresid.linter.text.syntax import UnparsableError, parse
from jaxresid.results import Finding, Location

_ENTRIES = {entry.name: entry for entry in (*INDEX, *TRACED)}


@dataclass(frozen=True, slots=True)
class FindingFile:
    """A source file with findings.

    Attributes:
      path: The path as shown: relative to the working directory if it lies below it.
      absolute: The absolute path.
      document: The content; None where it cannot be read.
      facts: The facts of its syntax tree; None where it does not parse.
    """

    path: str
    absolute: Path
    document: Document | None
    facts: Facts | None


class FindingPlacer:
    """The placing of one target's findings at lines of the user's source.

    A finding that lies in a library, or has no line, is placed where the target is defined, and its
    message says where it really is.
    """

    def __init__(self, target: Callable[..., Any], name: str, frames: Frames) -> None:
        self._frames = frames
        self._name = name
        self._target = definition(target)
        self._files: dict[str, FindingFile] = {}

    def file(self, path: str) -> FindingFile:
        """Return the file at an absolute path, read at most once."""
        if path not in self._files:
            self._files[path] = _file(path, self._shown(path))
        return self._files[path]

    def violation(
        self, finding: Finding, measured: Mapping[str, object]
    ) -> tuple[FindingFile, Violation]:
        """Return the violation that a finding amounts to, and the file that it is in.

        Args:
          finding: The finding to place.
          measured: Figures to add to the finding's own.
        """
        entry = _ENTRIES[finding.name]
        location, message = finding.location, finding.message
        called = finding.source.library
        if called is not None and self._kind(called) != "library":  # JAX's own, `jax.nn.gelu`
            called = None
        if location is None or self._kind(location) != "user":
            called = location
        notes = []
        if called is not None:
            where = f"{called.place} {called.function}".rstrip()
            notes.append(f"in {where}, called from here")
        if finding.source.scope:
            notes.append(f"module {finding.source.scope}")
        if notes:
            message = f"{message} ({'; '.join(notes)})"
        if location is None or location is called:
            location = self._target or Location(self._name, 1, None, self._name)
        file = self.file(self._absolute(location))
        node = None if file.facts is None else _node(file.facts, location)
        span = _line(file.document, location.line)
        rows: tuple[int, ...] = (location.line,)
        if file.facts is not None and node is not None:
            span, rows = _header(file.facts, node), noqa_rows(file.facts, node)
        return file, Violation(
            entry.code,
            entry.name,
            entry.severity,  # type: ignore[arg-type]
            message,
            file.path,
            span,
            noqa_rows=rows,
            help=finding.help,
            measured={**finding.measured, **measured},
        )

    def crash(self, warning: str) -> tuple[FindingFile, Violation]:
        """Return the violation for findings that could not be looked for, where the target is."""
        location = self._target or Location(self._name, 1, None, self._name)
        file = self.file(self._absolute(location))
        span = _line(file.document, location.line)
        return file, Violation(CRASHED_FINDING, CRASHED_FINDING, "error", warning, file.path, span)

    def _absolute(self, location: Location) -> str:
        if location.file.startswith("<"):  # what was compiled from no file
            return location.file
        return os.path.normpath(os.path.join(self._frames.cwd, location.file))

    def _kind(self, location: Location) -> str:
        if location.is_of_loss:
            return "library"
        return self._frames.kind(self._absolute(location), location.function)

    def _shown(self, path: str) -> str:
        return path.removeprefix(self._frames.cwd)


def _file(path: str, display_path: str) -> FindingFile:
    absolute = Path(path)
    try:
        raw = absolute.read_bytes()
    except OSError:  # a notebook's cell, whose lines linecache may know
        raw = "".join(linecache.getlines(path)).encode("utf-8", "surrogatepass")
    document = read(raw, display_path)
    if isinstance(document, Violation):
        return FindingFile(display_path, absolute, None, None)
    try:
        facts = Facts(document.source, parse(document.source))
    except (UnparsableError, RecursionError):
        return FindingFile(display_path, absolute, document, None)
    return FindingFile(display_path, absolute, document, facts)


def _node(facts: Facts, location: Location) -> ast.expr | ast.stmt | None:
    """Return the syntax node that a location means.

    This is the call that begins there, else the expression that begins there, else the innermost
    statement on its line.
    """
    row, column = location.line, location.column
    if column is not None:
        begun = [
            node
            for node in ast.walk(facts.names.tree)
            if isinstance(node, ast.expr)
            and node.lineno == row
            and facts.source.span(node).column == column
        ]
        calls = [node for node in begun if isinstance(node, ast.Call)]
        if calls:
            return _outermost_call(calls)
        if begun:
            return max(begun, key=facts.source.span)
    statements = [
        node
        for node in ast.walk(facts.names.tree)
        if isinstance(node, ast.stmt) and _first_row(node) <= row <= (node.end_lineno or row)
    ]
    return max(statements, key=lambda s: (s.lineno, s.col_offset), default=None)


def _outermost_call(calls: list[ast.Call]) -> ast.Call:
    """Return the innermost of the calls that begin at one place, with any call of its result.

    Of `jax.checkpoint(f)(x).sum()` this is `jax.checkpoint(f)(x)`.
    """
    around = {id(call.func): call for call in calls}
    inner = min(calls, key=lambda c: (c.end_lineno or 0, c.end_col_offset or 0))
    while id(inner) in around:
        inner = around[id(inner)]
    return inner


def _first_row(statement: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(d.lineno for d in decorators)])


def _header(facts: Facts, node: ast.expr | ast.stmt) -> Span:
    """Return the span of a node; of a compound statement, that of its first line only."""
    span = facts.source.span(node)
    if not hasattr(node, "body") or isinstance(node, ast.expr):
        return span
    end = len(facts.source.lines[span.row - 1].rstrip())
    return Span(span.row, span.column, span.row, max(end, span.column + 1))


def _line(document: Document | None, row: int) -> Span:
    lines = document.source.lines if document is not None else ()
    text = lines[row - 1] if row <= len(lines) else ""
    start = len(text) - len(text.lstrip())
    return Span(row, start, row, max(len(text.rstrip()), start + 1))

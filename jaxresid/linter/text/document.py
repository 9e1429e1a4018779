"""Represent a file as the linter sees it: a Python module, or a notebook whose cells make one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from jaxresid.base.violations import Edit, Span, Violation
from jaxresid.linter.text.source import SourceText, UndecodableError
from jaxresid.linter.text.syntax import UnparsableError, parse

if TYPE_CHECKING:
    from jaxresid.linter.text.notebook import Notebook


class Parsed(NamedTuple):
    """A file with its tree.

    Attributes:
      document: the file, with blanks in place of the cells that are no Python.
      tree: its tree.
      errors: why cells are no Python, and where, in the coordinates of the module.
    """

    document: Document
    tree: ast.Module
    errors: tuple[UnparsableError, ...] = ()


class Document(NamedTuple):
    """Text to lint, and how its positions map to what the user sees.

    Attributes:
      source: the module; for a notebook its code cells joined.
      notebook: the notebook, None for a module.
    """

    source: SourceText
    notebook: Notebook | None = None

    @property
    def is_notebook(self) -> bool:
        """Return whether the file is a notebook."""
        return self.notebook is not None

    def parsed(self) -> Parsed:
        """Return the tree of the file; cells of a notebook that are no Python are left out of it.

        Raises:
          UnparsableError: No Python that we know of accepts it.
        """
        try:
            return Parsed(self, parse(self.source, top_level_await=self.is_notebook))
        except UnparsableError:
            if self.notebook is None:
                raise
            errors: list[UnparsableError] = []
            parts: list[str] = []
            for cell, text in self.notebook.python():
                try:
                    parse(SourceText(self.source.path, text), top_level_await=True)
                except UnparsableError as e:
                    errors.append(UnparsableError(str(e), e.row + cell.row - 1, e.column))
                    parts.append(re.sub(r"[^\r\n]", " ", text))
                else:
                    parts.append(text)
            if not errors:
                raise
        rest = SourceText(self.source.path, "".join(parts))
        readable = Document(rest, replace(self.notebook, text=rest.text))
        return Parsed(readable, parse(rest, top_level_await=True), tuple(errors))

    def relative_to_cell(self, violation: Violation) -> Violation:
        """Return the violation with positions relative to its notebook cell."""
        if self.notebook is None:
            return violation
        cell, span = self.notebook.place(violation.span)
        shift = span.row - violation.span.row
        fix = violation.fix
        if fix is not None:
            placed = [self.notebook.place_edit(e) for e in fix.edits]
            if any(c != cell for c, _ in placed):
                fix = None  # one cell at a time is what every format can say
            else:
                fix = replace(fix, edits=tuple(edit for _, edit in placed))
        related = []
        for other in violation.related:
            if other.path == violation.path:
                other_cell, other_span = self.notebook.place(other.span)
                other = replace(other, cell=other_cell, span=other_span)  # noqa: PLW2901
            related.append(other)
        return replace(
            violation,
            cell=cell,
            span=span,
            fix=fix,
            related=tuple(related),
            noqa_rows=tuple(r + shift for r in violation.noqa_rows if r + shift > 0),
        )

    def lines(self, violations: Iterable[Violation]) -> Mapping[int | None, tuple[str, ...]]:
        """Return the lines that excerpts of the violations need, by cell."""
        cells = {v.cell for v in violations}
        if self.notebook is None:
            return {None: self.source.lines} if cells else {}
        return {c: self.notebook.lines(c) for c in cells if c is not None}

    def edited(self, edits: Iterable[Edit]) -> bytes:
        """Return the file's bytes after edits in the module's coordinates.

        Raises:
          ValueError: The edits overlap, span two cells, or cannot be encoded.
        """
        if self.notebook is not None:
            return self.notebook.apply(tuple(edits))
        return self.source.encode(self.source.edited(edits))


def read(raw: bytes, path: str) -> Document | Violation:
    """Decode a file, or return the violation that says why it cannot be linted."""
    if path.endswith(".ipynb"):
        from jaxresid.linter.text.notebook import read as read_notebook

        try:
            notebook = read_notebook(raw)
        except ValueError as e:
            return _broken(path, f"not a notebook: {e}")
        return Document(SourceText(path, notebook.text), notebook)
    try:
        return Document(SourceText.decode(raw, path))
    except UndecodableError as e:
        return _broken(path, str(e))


def _broken(path: str, message: str) -> Violation:
    name = "invalid-syntax"
    return Violation(name, name, "error", message, path, Span(1, 0, 1, 1))

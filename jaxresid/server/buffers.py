"""The text of open documents, and its positions as the protocol counts them.

Rows here are from 1 and columns from 0 in code points, as everywhere; the protocol's lines are from
0 and its characters in units of the encoding that client and server agreed on.
"""

from __future__ import annotations

import io
import tokenize
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from jaxresid.base.violations import Edit, Span
from jaxresid.linter.text.source import SourceText

ENCODINGS = ("utf-8", "utf-16", "utf-32")
_BOM = "\ufeff"


class Position(NamedTuple):
    """A position of the protocol: a line from 0, and units of its encoding in front of it."""

    line: int
    character: int


class Change(NamedTuple):
    """A change of a document.

    Attributes:
      start: where the text that is replaced starts; None where all of it is replaced.
      end: where it ends, likewise.
      text: what replaces it.
    """

    start: Position | None
    end: Position | None
    text: str


def nunits(text: str, encoding: str) -> int:
    """Return how many units a text has in `utf-8` (bytes), `utf-16` or `utf-32`."""
    if encoding == "utf-32" or text.isascii():
        return len(text)
    if encoding == "utf-8":
        return len(text.encode("utf-8", "surrogatepass"))
    return len(text) + sum(char > "\uffff" for char in text)


def column_of(line: str, character: int, encoding: str) -> int:
    """Return the code points in front of a position in a line.

    A position inside of a code point is in front of it, one behind the line at its end.
    """
    if encoding == "utf-32" or line.isascii():
        return min(character, len(line))
    at = 0
    for column, char in enumerate(line):
        at += nunits(char, encoding)
        if at > character:
            return column
    return len(line)


@dataclass(frozen=True)
class Buffer:
    """The text of an open document.

    Attributes:
      text: the text, with a byte order mark where the client keeps it.
      version: the client's number for it.
    """

    text: str
    version: int

    @cached_property
    def _source(self) -> SourceText:
        return SourceText("", self.text)

    @property
    def lines(self) -> tuple[str, ...]:
        """The lines without their ends."""
        return self._source.lines

    @property
    def seen(self) -> tuple[str, ...]:
        """The lines as the linter sees them, without a byte order mark."""
        return (self.lines[0].removeprefix(_BOM), *self.lines[1:])

    @property
    def newline(self) -> str:
        """The line end of the document."""
        return "\r\n" if "\r\n" in self.text else "\n"

    @cached_property
    def content(self) -> bytes:
        """What the file would hold if it were saved, in the encoding that the text declares.

        What that encoding lacks becomes question marks, so that positions stay.
        """
        raw = self.text.encode("utf-8", "replace")
        try:
            encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
            return raw if encoding.startswith("utf-8") else self.text.encode(encoding, "replace")
        except (SyntaxError, LookupError):  # which the linter reports
            return raw

    def changed(self, changes: Iterable[Change], version: int, encoding: str) -> Buffer:
        """Return the document after changes, each of the text that the one before it left.

        Args:
          changes: the changes.
          version: the client's number for the result.
          encoding: what positions count.
        """
        now = self
        for change in changes:
            if change.start is None or change.end is None:
                now = Buffer(change.text, version)
            else:
                start, end = now.offset(change.start, encoding), now.offset(change.end, encoding)
                start, end = min(start, end), max(start, end)
                now = Buffer(now.text[:start] + change.text + now.text[end:], version)
        return Buffer(now.text, version)

    def offset(self, position: Position, encoding: str) -> int:
        """Return the offset of a position; one outside of the text is moved to the nearest."""
        lines = self.lines
        if position.line >= len(lines):
            return len(self.text)
        column = column_of(lines[position.line], position.character, encoding)
        return self._source.starts[position.line] + column

    def character(self, row: int, column: int, encoding: str) -> int:
        """Return the units in front of a column of the linter's, which sees no byte order mark."""
        if row > len(self.lines):
            return column
        line = self.lines[row - 1]
        if row == 1 and line.startswith(_BOM):
            column += 1
        return nunits(line[:column], encoding) + max(0, column - len(line))

    def edits_to(self, text: str) -> tuple[Edit, ...]:
        """Return edits of whole lines, in the linter's coordinates, that make this text another.

        Args:
          text: the other text, with a byte order mark if this one has it.
        """
        import difflib

        old, new = (_lines_with_ends(t.removeprefix(_BOM)) for t in (self.text, text))
        found = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
        return tuple(
            Edit(Span(i1 + 1, 0, i2 + 1, 0), "".join(new[j1:j2]))
            for tag, i1, i2, j1, j2 in found
            if tag != "equal"
        )


def _lines_with_ends(text: str) -> list[str]:
    source = SourceText("", text)
    bounds = [*source.starts, len(text)]
    return [text[a:b] for a, b in pairwise(bounds) if a != b]

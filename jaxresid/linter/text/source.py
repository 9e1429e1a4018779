"""Hold the text of one Python file: decoding, lines, positions, edits."""

from __future__ import annotations

import ast
import codecs
import io
import re
import tokenize
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from jaxresid.base.text.wide_encodings import wide_encoding
from jaxresid.base.violations import Edit, Span

# What ends a line for Python's tokenizer. str.splitlines knows more: form feeds, U+2028.
_LINE = re.compile(r"\r\n|\r|\n")
_WIDE = re.compile(r"[^\x00-\x7f]")
_BOM = codecs.BOM_UTF8


class UndecodableError(ValueError):
    """The error of bytes that are not Python source in the encoding that they declare."""


@dataclass(frozen=True)
class SourceText:
    """Python source as text, with what is needed to write it back byte for byte.

    Attributes:
      path: as shown to the user.
      text: decoded, line ends as they were, without a byte order mark.
      encoding: a codec name, from the declaration (PEP 263) or `utf-8`.
      bom: whether the bytes began with a UTF-8 byte order mark.
    """

    path: str
    text: str
    encoding: str = "utf-8"
    bom: bool = False

    @classmethod
    def decode(cls, raw: bytes, path: str) -> SourceText:
        """Return the source that a file's bytes hold.

        Raises:
          UndecodableError: The bytes cannot be decoded; the message gives the user a reason.
        """
        if wide := wide_encoding(raw):
            raise UndecodableError(f"it is {wide}, which Python does not read; save it as UTF-8")
        bom = raw.startswith(_BOM)
        try:
            encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
        except (SyntaxError, UnicodeDecodeError) as e:
            raise UndecodableError(str(e)) from e
        if encoding.startswith("utf-8"):
            encoding = "utf-8"
        try:
            text = raw[len(_BOM) if bom else 0 :].decode(encoding)
        except (UnicodeDecodeError, LookupError) as e:
            raise UndecodableError(f"not {encoding}: {e}") from e
        if "\0" in text:
            raise UndecodableError("it has NUL characters")
        return cls(path, text, encoding, bom)

    def encode(self, text: str) -> bytes:
        """Return `text` as this file's bytes.

        Raises:
          UnicodeEncodeError: The file's encoding cannot represent the text.
        """
        return (_BOM if self.bom else b"") + text.encode(self.encoding)

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """The offset of each line's first character; row r starts at `starts[r - 1]`."""
        return (0, *(m.end() for m in _LINE.finditer(self.text)))

    @cached_property
    def lines(self) -> tuple[str, ...]:
        """The lines without their ends."""
        return tuple(_LINE.split(self.text))

    @cached_property
    def _wide_rows(self) -> dict[int, list[tuple[int, int]]]:
        return {}

    def offset(self, row: int, column: int) -> int:
        """Return the offset in `text` of a 1-based row and a 0-based column in code points."""
        starts = self.starts
        if row > len(starts):
            return len(self.text)
        return min(starts[row - 1] + column, len(self.text))

    def position(self, offset: int) -> tuple[int, int]:
        """Return the row and column of an offset."""
        row = bisect_right(self.starts, offset)
        return row, offset - self.starts[row - 1]

    def _column(self, row: int, nbytes: int) -> int:
        """Return the column in code points, which everything here counts, of one in UTF-8 bytes.

        `ast` counts UTF-8 bytes.
        """
        wide = self._wide(row)
        before = bisect_right(wide, nbytes, key=lambda w: w[0])
        return nbytes - (wide[before - 1][1] if before else 0)

    def _wide(self, row: int) -> list[tuple[int, int]]:
        """Return (end, shift) of a row's characters of several bytes.

        The end of the character is in bytes; the shift is by how much columns are fewer than bytes
        from there on. The result is kept, as a row may be long and hold many nodes.
        """
        found = self._wide_rows.get(row)
        if found is None:
            found = self._wide_rows[row] = []
            line = self.lines[row - 1] if row <= len(self.lines) else ""
            if not line.isascii():
                shift = 0
                for match in _WIDE.finditer(line):
                    shift += len(match.group().encode("utf-8")) - 1
                    found.append((match.end() + shift, shift))
        return found

    def span(self, node: ast.expr | ast.stmt | ast.arg | ast.keyword | ast.alias) -> Span:
        """Return the span of a node."""
        end_row = node.end_lineno or node.lineno
        end = node.end_col_offset if node.end_col_offset is not None else node.col_offset
        return Span(
            node.lineno,
            self._column(node.lineno, node.col_offset),
            end_row,
            self._column(end_row, end),
        )

    def segment(self, span: Span) -> str:
        """Return the text in `span`."""
        return self.text[self.start(span) : self.end(span)]

    def start(self, span: Span) -> int:
        """Return the offset of a span's first character."""
        return self.offset(span.row, span.column)

    def end(self, span: Span) -> int:
        """Return the offset just after a span."""
        return self.offset(span.end_row, span.end_column)

    def between(self, start: int, end: int) -> Span:
        """Return the span from one offset to another."""
        return Span(*self.position(start), *self.position(end))

    def edited(self, edits: Iterable[Edit]) -> str:
        """Return the text after edits that do not overlap.

        Raises:
          ValueError: Two edits overlap.
        """
        done, at = [], 0
        for edit in sorted(edits):
            start, end = self.start(edit.span), self.end(edit.span)
            if start < at:
                raise ValueError("edits overlap")
            done += [self.text[at:start], edit.text]
            at = end
        return "".join(done) + self.text[at:]

"""Read Jupyter notebooks: join the code cells into one module, and write edits of it back.

The file's JSON is scanned, not re-serialised: what an edit does not touch keeps its bytes.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from json.decoder import JSONDecoder

from jaxresid.base.text.wide_encodings import wide_encoding
from jaxresid.base.violations import Edit, Span
from jaxresid.linter.text.lexer import LINE_END
from jaxresid.linter.text.magics import masked

_BOM = "\ufeff"
_BLANK = re.compile(r"[ \t\r\n]*+")
_DECODER = JSONDecoder()

# --- the JSON


@dataclass(frozen=True, slots=True)
class _JsonValue:
    """A JSON value and its position in the text."""

    value: object
    start: int
    end: int


def _skip(text: str, pos: int) -> int:
    match = _BLANK.match(text, pos)
    return match.end() if match else pos


def _read_value(text: str, pos: int) -> _JsonValue:
    start = _skip(text, pos)
    value, end = _DECODER.raw_decode(text, start)
    return _JsonValue(value, start, end)


def _expect(text: str, pos: int, choices: str) -> int:
    """Return the position after one of some characters."""
    pos = _skip(text, pos)
    if not text.startswith(tuple(choices), pos):
        raise json.JSONDecodeError(f"Expecting one of {choices}", text, pos)
    return pos + 1


def _read_object(text: str, pos: int, inner: str = "") -> tuple[dict[str, _JsonValue], int]:
    """Return an object's members and its end; `_read_array` reads the value of the key `inner`."""
    members: dict[str, _JsonValue] = {}
    pos = _expect(text, pos, "{")
    if text.startswith("}", _skip(text, pos)):
        return members, _skip(text, pos) + 1
    while True:
        key = _read_value(text, pos)
        if not isinstance(key.value, str):
            raise json.JSONDecodeError("Expecting a key", text, key.start)
        start = _skip(text, _expect(text, key.end, ":"))
        if key.value == inner and text.startswith("[", start):
            cells, pos = _read_array(text, start)
            members[inner] = _JsonValue(cells, start, pos)
        else:
            members[key.value] = value = _read_value(text, start)
            pos = value.end
        pos = _expect(text, pos, ",}")
        if text[pos - 1] == "}":
            return members, pos


def _read_array(text: str, pos: int) -> tuple[list[dict[str, _JsonValue] | None], int]:
    """Return the objects in an array, None for other elements, and its end."""
    found: list[dict[str, _JsonValue] | None] = []
    pos = _expect(text, pos, "[")
    if text.startswith("]", _skip(text, pos)):
        return found, _skip(text, pos) + 1
    while True:
        start = _skip(text, pos)
        if text.startswith("{", start):
            members, pos = _read_object(text, start)
            found.append(members)
        else:
            pos = _read_value(text, start).end
            found.append(None)
        pos = _expect(text, pos, ",]")
        if text[pos - 1] == "]":
            return found, pos


# A surrogate pair is one character of the decoded string.
_CHARACTER = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\.|[^\\]",
    re.DOTALL,
)


def _string_body(text: str, ascii_only: bool) -> str:
    """Return the inside of a JSON string."""
    # Lone surrogates have no bytes in UTF-8.
    ascii_only = ascii_only or any("\ud800" <= c <= "\udfff" for c in text)
    return json.dumps(text, ensure_ascii=ascii_only)[1:-1]


def _rewritten(literal: str, old: str, new: str, ascii_only: bool) -> str:
    """Return a JSON string literal with another value.

    The characters that stay keep their spelling.
    """
    spelled = _CHARACTER.findall(literal[1:-1])
    assert len(spelled) == len(old)
    head = _common_prefix_length(old, new)
    tail = _common_prefix_length(old[head:][::-1], new[head:][::-1])
    middle = _string_body(new[head : len(new) - tail], ascii_only)
    return '"' + "".join([*spelled[:head], middle, *spelled[len(old) - tail :]]) + '"'


def _rewritten_list(text: str, items: Sequence[str], new: str, ascii_only: bool) -> str:
    """Return the text of a list of strings that join to `new`.

    Args:
      text: the text of the old list.
      items: the values of the old list.
      new: what the strings of the new list join to.
      ascii_only: whether to escape everything but ASCII.
    """
    spans = [(v.start, v.end) for v in _elements(text)]
    by_any = list(items) == "".join(items).splitlines(keepends=True)
    lines = new.splitlines(keepends=True) if by_any else re.findall(r"[^\n]*\n|[^\n]+", new)
    head = _common_prefix_length(items, lines)
    tail = _common_prefix_length(items[head:][::-1], lines[head:][::-1])
    old_middle = range(head, len(items) - tail)
    middle = []
    for index, line in enumerate(lines[head : len(lines) - tail]):
        if index < len(old_middle):
            start, end = spans[old_middle[index]]
            literal = text[start:end]
            middle.append(_rewritten(literal, items[old_middle[index]], line, ascii_only))
        else:
            middle.append(f'"{_string_body(line, ascii_only)}"')
    kept = [text[start:end] for start, end in spans]
    literals = [*kept[:head], *middle, *kept[len(items) - tail :]]
    if not literals:
        return "[]"
    if not spans:
        return f"[{', '.join(literals)}]"
    before, after = text[: spans[0][0]], text[spans[-1][1] :]
    between = text[spans[0][1] : spans[1][0]] if len(spans) > 1 else "," + (before[1:] or " ")
    return before + between.join(literals) + after


def _elements(text: str) -> Iterator[_JsonValue]:
    pos = 1
    while not text.startswith("]", _skip(text, pos)):
        value = _read_value(text, pos)
        yield value
        pos = _skip(text, value.end)
        if text.startswith(",", pos):
            pos += 1


def _common_prefix_length(one: Sequence[str], other: Sequence[str]) -> int:
    """Return how many elements two sequences share at their start."""
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count


# --- notebooks


@dataclass(frozen=True, slots=True)
class Cell:
    """A code cell.

    Attributes:
      number: 1-based, among the cells of all kinds.
      row: the module's row where it starts.
      source: its text as it is in the notebook.
      start, end: where its `source` starts and ends in the JSON.
      items: the strings of `source`, None where it is one string.
      magic_rows: rows of the cell that hold magics.
      first: the first row of the cell before which text can be inserted.
      cuts: how much of each row's start is not in the module.
    """

    number: int
    row: int
    source: str
    start: int
    end: int
    items: tuple[str, ...] | None
    magic_rows: frozenset[int] = frozenset()
    first: int = 1
    cuts: tuple[int, ...] = ()

    @property
    def text(self) -> str:
        """The source, with a line end after its last line."""
        return self.source if self.source.endswith("\n") else f"{self.source}\n"

    def cut(self, row: int) -> int:
        """Return how much of a row's start is not in the module; 0 for a row below the cell."""
        return self.cuts[row - 1] if row <= len(self.cuts) else 0


@dataclass(frozen=True, slots=True)
class Notebook:
    """The Python of a notebook.

    Attributes:
      text: the code cells joined, magics replaced by Python of the same width that does nothing.
      cells: the code cells.
      json: the text of the file.
    """

    text: str
    cells: tuple[Cell, ...]
    json: str = field(repr=False)

    def place(self, span: Span) -> tuple[int, Span]:
        """Return the number of the cell where a module's span starts, and the span in that cell.

        Raises:
          ValueError: There is no code cell.
        """
        cell = self._cell_at(span.row)
        row, end_row = span.row - cell.row + 1, span.end_row - cell.row + 1
        return cell.number, Span(
            row, span.column + cell.cut(row), end_row, span.end_column + cell.cut(end_row)
        )

    def place_edit(self, edit: Edit) -> tuple[int, Edit]:
        """Return the number of the cell where a module's edit starts, and the edit in that cell.

        In a cell that is indented as a whole what is written is indented with it.

        Raises:
          ValueError: There is no code cell.
        """
        number, span = self.place(edit.span)
        cell = self._cell_at(edit.span.row)
        cut = cell.cut(span.row)
        if not cut:
            return number, Edit(span, edit.text)
        indent = LINE_END.split(cell.text)[span.row - 1][:cut]
        if edit.span.column == edit.span.end_column == 0 and edit.text.endswith("\n"):
            whole_lines = Span(span.row, 0, span.end_row, 0)
            return number, Edit(whole_lines, re.sub(r"(?m)^(?=[^\r\n])", indent, edit.text))
        return number, Edit(span, re.sub(r"\n(?!\r?\n)", f"\n{indent}", edit.text))

    def python(self) -> Iterator[tuple[Cell, str]]:
        """Yield the cells, each with its part of the module."""
        lines = re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+", self.text)
        ends = [*(cell.row - 1 for cell in self.cells[1:]), len(lines)]
        for cell, end in zip(self.cells, ends, strict=True):
            yield cell, "".join(lines[cell.row - 1 : end])

    def lines(self, cell: int) -> tuple[str, ...]:
        """Return the lines of a cell, given by its number, as they are in the notebook.

        Raises:
          ValueError: The notebook has no such cell, or it holds no Python.
        """
        for one in self.cells:
            if one.number == cell:
                return tuple(LINE_END.split(one.text)[:-1])
        raise ValueError(f"cell {cell} holds no Python")

    def apply(self, edits: Sequence[Edit]) -> bytes:
        """Return the file's bytes after edits in the coordinates of the module.

        Raises:
          ValueError: Edits overlap, or one spans two cells or touches a magic.
        """
        by_cell: dict[int, list[Edit]] = defaultdict(list)
        index = {cell.number: cell for cell in self.cells}
        for edit in edits:
            number, placed = self.place_edit(edit)
            _check_editable(index[number], placed.span)
            by_cell[number].append(placed)
        ascii_only = _writes_ascii(self.json)
        parts, at = [], 0
        for number in sorted(by_cell):
            cell = index[number]
            parts += [self.json[at : cell.start], self._source(cell, by_cell[number], ascii_only)]
            at = cell.end
        return "".join([*parts, self.json[at:]]).encode()

    def _cell_at(self, row: int) -> Cell:
        index = bisect_right(self.cells, row, key=lambda c: c.row) - 1
        if index < 0:
            raise ValueError("the notebook has no Python there")
        return self.cells[index]

    def _source(self, cell: Cell, edits: Sequence[Edit], ascii_only: bool) -> str:
        """Return the JSON of a cell's source after edits in its coordinates."""
        new = _edited(cell.text, edits)
        if cell.text != cell.source:
            new = new.removesuffix("\n")
        text = self.json[cell.start : cell.end]
        if new == cell.source:
            return text
        if cell.items is None:
            return _rewritten(text, cell.source, new, ascii_only)
        return _rewritten_list(text, cell.items, new, ascii_only)


def _check_editable(cell: Cell, span: Span) -> None:
    """Raise ValueError for a span in which nothing can be changed."""
    rows = len(LINE_END.findall(cell.text))
    if (span.end_row, span.end_column) > (rows + 1, 0):
        raise ValueError("an edit spans two cells")
    last = span.end_row - 1 if span.end_column == 0 and span.end_row > span.row else span.end_row
    inserted_above = span.column == span.end_column == 0 and span.row == span.end_row
    touched = set() if inserted_above else set(range(span.row, last + 1))
    if span.row < cell.first or touched & cell.magic_rows:
        raise ValueError("an edit touches a magic")


def _edited(text: str, edits: Sequence[Edit]) -> str:
    starts = [0, *(m.end() for m in LINE_END.finditer(text))]
    done, at = [], 0
    for edit in sorted(edits):
        span = edit.span
        start = min(starts[span.row - 1] + span.column, len(text))
        end = min(starts[span.end_row - 1] + span.end_column, len(text))
        if start < at:
            raise ValueError("edits overlap")
        done += [text[at:start], edit.text]
        at = end
    return "".join(done) + text[at:]


def _writes_ascii(text: str) -> bool:
    """Return whether the notebook was written with everything but ASCII escaped."""
    escaped = r"(?<!\\)(?:\\\\)*\\u(?!00[0-7])[0-9a-fA-F]{4}"
    return text.isascii() and re.search(escaped, text) is not None


_DATABRICKS = "application/vnd.databricks.v1+notebook"


def read(raw: bytes) -> Notebook:
    """Read a notebook; one of another language has no cells.

    Raises:
      ValueError: The bytes are not a notebook; the message gives the reason.
    """
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as e:
        wide = wide_encoding(raw)
        raise ValueError(f"it is {wide}" if wide else f"it is not UTF-8: {e}") from e
    try:
        top, end = _read_object(text, 1 if text.startswith(_BOM) else 0, "cells")
        if _skip(text, end) != len(text):
            raise json.JSONDecodeError("Extra data", text, end)
    except json.JSONDecodeError as e:
        raise ValueError(f"it is not a JSON object: {e}") from e
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None
    if "cells" not in top:
        old = "worksheets" in top
        reason = (
            "its format is nbformat 3 or older; open and save it in Jupyter"
            if old
            else "it has no `cells`"
        )
        raise ValueError(reason)
    cells = top["cells"].value
    if not isinstance(cells, list):
        raise ValueError("`cells` is not a list")
    if not _is_python(top):
        return Notebook("", (), text)
    of_databricks = _get(top, "metadata", _DATABRICKS) is not None
    found: list[Cell] = []
    parts: list[str] = []
    row = 1
    for number, members in enumerate(cells, 1):
        cell = _cell(number, members, row)
        if cell is None:
            continue
        python = masked(cell.text, of_databricks=of_databricks)
        found.append(replace(cell, magic_rows=python.rows, first=python.first, cuts=python.cuts))
        parts.append(python.text)
        row += len(LINE_END.findall(python.text))
    return Notebook("".join(parts), tuple(found), text)


def _cell(number: int, members: dict[str, _JsonValue] | None, row: int) -> Cell | None:
    """Return a cell before its magics are looked for, None if it holds no Python."""
    if members is None:
        raise ValueError(f"cell {number} is not an object")
    if _get(members, "cell_type") != "code" or not _is_python_cell(members):
        return None
    source = members.get("source")
    if source is not None and isinstance(source.value, str):
        return Cell(number, row, source.value, source.start, source.end, None)
    if source is not None and isinstance(source.value, list):
        items = source.value
        if all(isinstance(item, str) for item in items):
            text = "".join(items)
            return Cell(number, row, text, source.start, source.end, tuple(items))
    raise ValueError(f"the `source` of cell {number} is neither a string nor a list of strings")


def _get(members: dict[str, _JsonValue], *keys: str) -> object:
    """Return the value under some keys, None where there is none."""
    first = members.get(keys[0])
    value = first.value if first else None
    for key in keys[1:]:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _is_python(top: dict[str, _JsonValue]) -> bool:
    for where in (("language_info", "name"), ("kernelspec", "language")):
        language = _get(top, "metadata", *where)
        if isinstance(language, str):
            return language.lower().startswith(("python", "ipython"))
    return True


# What notebooks of several languages say of a cell: VS Code's, .NET Interactive's, SoS'.
_CELL_LANGUAGES = (
    ("vscode", "languageId"),
    ("polyglot_notebook", "kernelName"),
    ("dotnet_interactive", "language"),
    ("kernel",),
)


def _is_python_cell(members: dict[str, _JsonValue]) -> bool:
    """Return whether a code cell holds Python.

    Some tools keep cells of other languages among those of a Python kernel.
    """
    for where in _CELL_LANGUAGES:
        language = _get(members, "metadata", *where)
        if isinstance(language, str):
            return "python" in language.lower()
    return True
